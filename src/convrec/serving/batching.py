"""What decodes the lists of a service, and lists decoded together in one thread.

Requests join such a batch between two tokens, and leave when their list ends.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from convrec.generation.engine import TokenIds
from convrec.serving.translation import Prepared

logger = logging.getLogger(__name__)

Completion = Future[TokenIds]


class Decoder(Protocol):
    """Decodes the lists of a version: a `Batcher` in this process, or vLLM servers."""

    def submit(self, asked: Prepared) -> Completion:
        """Return the future completion of a request, up to its end token or beyond.

        A request whose future is cancelled is not computed further. Raises `RuntimeError` after `close`.
        """

    @property
    def is_alive(self) -> bool:
        """Whether requests are answered."""

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait in this process."""

    @property
    def num_running(self) -> int:
        """The number of lists that are being decoded."""

    def close(self) -> None:
        """Finish all requests, then free the memory; no request is accepted any more."""


class Batcher(ABC):
    """The queue and the thread of continuous batching; subclasses decode.

    A request whose future is cancelled, waiting or running, is not computed further. `on_step` is called after each
    step with the number of tokens that it has written, one for each running list.
    """

    def __init__(self, max_rows: int, on_step: Callable[[int], None] = lambda tokens: None):
        self.max_rows, self._on_step = max_rows, on_step
        self._waiting: deque[tuple[Prepared, Completion]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    def submit(self, asked: Prepared) -> Completion:
        """Return the future completion of a request, up to its end token or beyond."""
        completion: Completion = Future()
        with self._changed:
            if self._is_closing:
                raise RuntimeError("the engine is closed")
            self._waiting.append((asked, completion))
            self._changed.notify()
        return completion

    @property
    def is_alive(self) -> bool:
        """Whether the decoding thread runs."""
        return self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """The number of requests that have not joined the batch yet."""
        return len(self._waiting)

    @property
    @abstractmethod
    def num_running(self) -> int:
        """The number of lists that are being decoded."""

    def close(self) -> None:
        """Finish all requests, then free the memory; no request is accepted any more."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    @abstractmethod
    def _join(self, asked: Sequence[tuple[Prepared, Completion]]) -> None:
        """Add requests to the batch."""

    @abstractmethod
    def _step(self) -> int:
        """Drop cancelled lists, write a token of each other list, and finish those that end; return the tokens."""

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """End all running lists with an error, and begin with an empty batch."""

    @abstractmethod
    def _free(self) -> None:
        """Free the memory of the model."""

    def _run(self) -> None:
        while self._wait():
            joining = self._next()
            try:
                self._join(joining)
                self._on_step(self._step())
            except Exception as error:
                logger.exception("decoding failed")
                self._fail(error)
                for _, completion in joining:
                    fail(completion, error)
        self._free()

    def _wait(self) -> bool:
        """Wait until there is work; return whether there is, or was the engine closed."""
        with self._changed:
            while not (self._waiting or self.num_running or self._is_closing):
                self._changed.wait()
            return bool(self._waiting or self.num_running)

    def _next(self) -> list[tuple[Prepared, Completion]]:
        """Take the requests that the batch has room for, in order of arrival."""
        taken: list[tuple[Prepared, Completion]] = []
        while self._waiting and self.num_running + len(taken) < self.max_rows:
            asked, completion = self._waiting.popleft()
            if not completion.cancelled():
                taken.append((asked, completion))
        return taken


def finish(completion: Completion, tokens: TokenIds) -> None:
    """Set the result of a future that may have been cancelled."""
    if completion.set_running_or_notify_cancel():
        completion.set_result(tokens)


def fail(completion: Completion, error: Exception) -> None:
    """Set the error of a future that may be done or cancelled."""
    if not completion.done() and completion.set_running_or_notify_cancel():
        completion.set_exception(error)
