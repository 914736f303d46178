"""Peak memory of a block of code: of the GPU's allocator, or on a CPU counted by tensor."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from convrec.experiments.estimate import Meter

from convrec.hardware.device import release_memory


class Peak:
    """The peak of a block in bytes, once it has ended."""

    bytes = 0


@contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Measure the memory that the block takes at most on `cuda` or `cpu`, beyond what it found there."""
    peak = Peak()
    if device == "cpu":
        with Meter() as meter:
            yield peak
        peak.bytes = meter.peak
        return
    release_memory()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    yield peak
    peak.bytes = torch.cuda.max_memory_allocated() - before
