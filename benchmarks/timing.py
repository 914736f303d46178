"""Timing for the benchmarks."""

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback


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


class StepTimes(TrainerCallback):
    """The seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._start = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._start)
