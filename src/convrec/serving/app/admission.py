"""How many requests are let in, and when a client that is turned away may come back."""

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

_REMEMBERED = 200  # answers that the speed is measured on
_RECENT = 60.0  # seconds; older ones say little about the speed now
_LONGEST_WAIT = 60  # seconds that a client is told to wait


class Busy(RuntimeError):
    """As many requests as possible wait already; `retry_after` is the time in seconds until there is room."""

    def __init__(self, retry_after: int):
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Admission:
    """Counts the requests from their arrival to their answer, at most `limit`."""

    def __init__(self, limit: int):
        self.limit, self.num_inside = limit, 0
        self._ends: deque[float] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a request during the block. Raises `Busy` if there is no room."""
        if self.num_inside >= self.limit:
            raise Busy(self._wait())
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
            self._ends.append(time.monotonic())

    def _wait(self) -> int:
        """Return the time, in whole seconds, until half of the requests inside are answered at the measured speed."""
        now = time.monotonic()
        recent = [end for end in self._ends if end > now - _RECENT]
        seconds = (now - recent[0]) / len(recent) * self.num_inside / 2 if recent else 1.0
        return min(max(math.ceil(seconds), 1), _LONGEST_WAIT)
