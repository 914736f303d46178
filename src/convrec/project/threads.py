"""Number and waiting policy of OpenMP threads. OpenMP reads both when torch is first imported."""

import os
from pathlib import Path

SPINS = "1000"
_CHOSEN = "CONVREC_THREADS"  # OMP_NUM_THREADS as set here; any other value is the user's
_CGROUP = Path("/sys/fs/cgroup")


def limit_threads(processes: int | None = None) -> None:
    """Let OpenMP spin shortly, and use no more cores than this process may use; child processes inherit both.

    `processes` share the cores; by default, those of a launch on this machine (`LOCAL_WORLD_SIZE`). An idle thread of
    GNU's OpenMP, which torch has on Linux, spins 300,000 times by default before it sleeps, which takes the core from
    whatever else runs. Where it never spins, rollouts, of many small steps, take a third longer (`benchmarks.threads`).
    Variables that the user has set keep their values: `OMP_WAIT_POLICY`, `GOMP_SPINCOUNT`, `OMP_NUM_THREADS`.

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


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return how many cores this process may use: those of its affinity, within its container's CPU quota.

    OpenMP knows the affinity, not the quota. A fraction of a core counts only where there is no whole one.
    """
    cores = _own_cores()
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _own_cores() -> int:
    """Return the number of cores of the affinity; of the machine where the system has none, as macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota in cores by the files of cgroup v2 or v1; None without a quota."""
    v2, v1 = cgroup / "cpu.max", [cgroup / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    try:
        quota, period = v2.read_text().split() if v2.exists() else (path.read_text().strip() for path in v1)
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
