"""This machine: its processors and memory, and the memory that processes use."""

import os
import platform
from contextlib import suppress

import psutil

GIB = 2**30


def gpu_names() -> list[str]:
    """Return the names of the GPUs that torch can use."""
    import torch  # noqa: PLC0415  (seconds)

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def describe_machine() -> str:
    """Return the processor's cores, the memory and the GPUs in a few words."""
    gpus = gpu_names()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [f"{cores} {platform.machine()} cores", f"{psutil.virtual_memory().total / GIB:.0f} GiB of memory", *gpus]
    return ", ".join(parts if gpus else [*parts, "no GPU"])


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
