"""What decodes the lists of a service, and lists decoded together: they join a batch between two tokens, and leave."""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from convrec.generation.engine import TokenIds
from convrec.service.translation import Prepared

logger = logging.getLogger(__name__)

Completion = Future[TokenIds]


class Decoder(ABC):
    """Decodes the lists of a version: in this process, or on servers."""

    @abstractmethod
    def submit(self, asked: Prepared) -> Completion:
        """Return the future completion of a request, up to its end token or beyond.

        A request whose future is cancelled, waiting or running, is not computed further. Raises `RuntimeError` after
        `close`.
        """

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether requests are answered."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """The number of requests that wait in this process."""

    @property
    @abstractmethod
    def num_running(self) -> int:
        """The number of lists that are being decoded."""

    @abstractmethod
    def close(self) -> None:
        """Finish all requests, then free the memory; no request is accepted any more."""


class Batcher(Decoder):
    """The queue and the thread of continuous batching; subclasses decode.

    `on_step` is called after each step with the number of tokens that it has written, one for each running list.
    """

    def __init__(self, max_rows: int, on_step: Callable[[int], None] = lambda tokens: None):
        self.max_rows, self._on_step = max_rows, on_step
        self._waiting: deque[tuple[Prepared, Completion]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    def submit(self, asked: Prepared) -> Completion:
        completion: Completion = Future()
        with self._changed:
            if self._is_closing:
                raise RuntimeError("the engine is closed")
            self._waiting.append((asked, completion))
            self._changed.notify()
        return completion

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running())

    def close(self) -> None:
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
    def _running(self) -> list[Completion]:
        """Return the lists that are being decoded."""

    @abstractmethod
    def _clear(self) -> None:
        """Begin with an empty batch."""

    @abstractmethod
    def _free(self) -> None:
        """Free the memory of the model."""

    def _run(self) -> None:
        while (joining := self._next()) is not None:
            try:
                self._join(joining)
                self._on_step(self._step())
            except Exception as error:
                logger.exception("decoding failed")
                for completion in (*self._running(), *(completion for _, completion in joining)):
                    if not completion.done() and completion.set_running_or_notify_cancel():
                        completion.set_exception(error)
                self._clear()
        self._free()

    def _next(self) -> list[tuple[Prepared, Completion]] | None:
        """Wait for work; return the requests that the batch has room for, in order of arrival, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.num_running or self._is_closing)
            if not (self._waiting or self.num_running):
                return None
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
