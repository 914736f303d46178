"""This machine: its cores, memory and GPUs, and what a process takes of them."""

import ctypes
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

import psutil

GIB = 2**30
SPINS = "1000"
_CHOSEN = "CONVREC_THREADS"  # OMP_NUM_THREADS as set here; any other value is the user's
_CGROUP = Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def limit_threads(processes: int | None = None) -> None:
    """Let OpenMP spin shortly, and use no more cores than this process may use; child processes inherit both.

    OpenMP reads the variables when torch is first imported. `processes` share the cores; by default, those of a launch
    on this machine (`LOCAL_WORLD_SIZE`). An idle thread of GNU's OpenMP, which torch has on Linux, spins 300,000 times
    by default before it sleeps, which takes the core from whatever else runs. Where it never spins, rollouts, of many
    small steps, take a third longer (docs/training.md). Variables that the user has set keep their values:
    `OMP_WAIT_POLICY`, `GOMP_SPINCOUNT`, `OMP_NUM_THREADS`.

    `OMP_NUM_THREADS` stays unset where OpenMP finds the same number by itself: a launcher and vLLM then choose for
    their own processes. The load of the machine plays no part: float sums depend on the number of threads, and two runs
    of one command must agree.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    chosen = os.environ.get(_CHOSEN)
    if os.environ.get("OMP_NUM_THREADS") != chosen:
        return
    share = max(1, usable_cores() // (processes or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    if share < int(chosen or _own_cores()):
        os.environ["OMP_NUM_THREADS"] = os.environ[_CHOSEN] = str(share)


def quiet_libraries() -> None:
    """Set the libraries' variables: no telemetry, and no progress bars beside the log, which has its own progress."""
    for name, value in {
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }.items():
        os.environ.setdefault(name, value)


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return how many cores this process may use: those of its affinity, within its container's CPU quota.

    OpenMP knows the affinity, not the quota. A fraction of a core counts only where there is no whole one.
    """
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except OSError:
        return _own_cores()
    return _own_cores() if quota == "max" else max(1, min(_own_cores(), int(quota) // int(period)))


def _own_cores() -> int:
    """Return the number of cores of the affinity; of the machine where the system has none, as macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process reuse blocks of up to 1 GiB that it freed, instead of returning each to the system.

    glibc, from which torch takes the tensors of a CPU, maps every block of 32 MiB or more anew, and the system clears
    its pages at the first write: a sixth of the time of a Rank-GRPO step on a CPU (docs/training.md). Does nothing
    where the C library is not glibc. Results are the same.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, GIB)
        mallopt(_M_TRIM_THRESHOLD, GIB)


def gpu_names() -> list[str]:
    """Return the names of the GPUs that torch can use."""
    import torch  # noqa: PLC0415  (seconds)

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def describe_machine() -> str:
    """Return the processor's cores, the memory and the GPUs in a few words."""
    memory = f"{psutil.virtual_memory().total / GIB:.0f} GiB of memory"
    return ", ".join([f"{_own_cores()} {platform.machine()} cores", memory, *(gpu_names() or ["no GPU"])])


def family(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all its descendants; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return [process, *process.children(recursive=True)]
    return []


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process and its descendants; memory that they share counts more than once."""
    total = 0
    for member in family(process):
        with suppress(psutil.NoSuchProcess):
            total += member.memory_info().rss
    return total


def gpu_bytes() -> tuple[list[int], list[int]]:
    """Return the used memory and the size of each GPU in bytes; all processes on the GPU count."""
    import torch  # noqa: PLC0415  (seconds)

    free_and_total = [torch.cuda.mem_get_info(index) for index in range(torch.cuda.device_count())]
    return [total - free for free, total in free_and_total], [total for _, total in free_and_total]
