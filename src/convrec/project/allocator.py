"""Reuse of freed memory by the C library, from which torch takes the tensors of a CPU."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_AT_MOST = 2**30  # bytes


def keep_freed_memory() -> None:
    """Let this process reuse blocks of up to 1 GiB that it freed, instead of returning each to the system.

    glibc maps every block of 32 MiB or more anew, and the system clears its pages at the first write: a sixth of the
    time of a Rank-GRPO step on a CPU (docs/training.md). Does nothing where the C library is not glibc. Results
    are the same.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _AT_MOST)
        mallopt(_M_TRIM_THRESHOLD, _AT_MOST)
