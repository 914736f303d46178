"""Time and memory for the benchmarks."""

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


class Meter(TorchDispatchMode):
    """Adds up the storages of the tensors that operations return, as long as they are alive, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        weakref.finalize(storage, self._drop, storage.nbytes())
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _drop(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor)
        return result
