"""Timing for the benchmarks."""

import time
from collections.abc import Callable

import torch


def clock(device: torch.device) -> float:
    """Return the time in seconds, once the work that was given to a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def least_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the minimum time of several runs after a warm-up run, in seconds."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
