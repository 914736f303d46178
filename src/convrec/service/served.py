"""A model that answers many requests at once."""

import asyncio
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from convrec.data.catalog import Item
from convrec.data.wishes import Wish
from convrec.generation.engine import TokenIds
from convrec.service.translation import Conversation, Messages, Prepared, Translator

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_GATHER_SECONDS = 0.005  # clients that have their lists of one batch ask again at nearly the same time


class Decoder(Protocol):
    """Decodes the lists of a version: in this process, or on a server. It is freed once nobody refers to it."""

    async def complete(self, asked: Prepared) -> TokenIds:
        """Return the completion of a request, up to its end token or beyond."""

    def warm(self, asked: Prepared) -> TokenIds:
        """Return the completion of a first request, in the calling thread; raise what fails."""

    @property
    def is_alive(self) -> bool:
        """Whether requests are answered."""


class Batcher(Generic[Result]):
    """Completes requests in a thread: what has come during a batch is the next batch, in order of arrival.

    `complete` returns the completion of each request of a batch, such as `Recommender.complete`. A request that is
    cancelled while it waits is in no batch. `on_batch` is called with the size of each batch.
    """

    is_alive = True

    def __init__(
        self,
        complete: Callable[[Sequence[Prepared]], Sequence[Result]],
        max_rows: int,
        on_batch: Callable[[int], None] = lambda size: None,
    ):
        self._complete, self._max_rows, self._on_batch = complete, max_rows, on_batch
        self._waiting: deque[tuple[Prepared, Future[Result]]] = deque()
        self._last_size = 1
        self._thread = ThreadPoolExecutor(1, "decoding")

    async def complete(self, asked: Prepared) -> Result:
        completion: Future[Result] = Future()
        self._waiting.append((asked, completion))
        self._thread.submit(self._complete_batch)
        return await asyncio.wrap_future(completion)

    def warm(self, asked: Prepared) -> Result:
        return self._complete([asked])[0]

    def _complete_batch(self) -> None:
        if self._waiting and self._last_size > 1:
            time.sleep(_GATHER_SECONDS)
        batch: list[tuple[Prepared, Future[Result]]] = []
        while self._waiting and len(batch) < self._max_rows:
            asked, completion = self._waiting.popleft()
            if completion.set_running_or_notify_cancel():
                batch.append((asked, completion))
        if not batch:  # an earlier call had them
            return
        self._last_size = len(batch)
        self._on_batch(len(batch))
        try:
            for (_, completion), result in zip(batch, self._complete([own for own, _ in batch]), strict=True):
                completion.set_result(result)
        except Exception as error:
            logger.exception("decoding failed")
            for _, completion in batch:
                completion.set_exception(error)


class Call(threading.Thread, Generic[Result]):
    """A call in a thread of its own. It can be ended while it runs Python code, such as that of a chat template."""

    def __init__(self, function: Callable[[], Result]):
        """Start the call."""
        super().__init__(name="call", daemon=True)
        self.result: Future[Result] = Future()
        self._function, self._guard = function, threading.Lock()
        self.result.set_running_or_notify_cancel()  # it cannot be cancelled any more, only ended
        self.start()

    def run(self) -> None:
        try:
            result = self._function()
            with self._guard:
                self.result.set_result(result)
        except BaseException as error:
            with self._guard:
                if not self.result.done():
                    self.result.set_exception(error)

    def end(self) -> None:
        """Raise `SystemExit` in the call, unless it is over."""
        with self._guard:  # so long, the thread does not end, and its number belongs to no other
            if not self.result.done():
                number = ctypes.c_ulong(self.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(SystemExit))


class Answered(NamedTuple):
    """A list with the conversation that it answers, the wishes read from it, and reasons if they were asked for."""

    messages: Messages
    items: list[Item]
    reasons: list[list[str]] | None = None
    wishes: Sequence[Wish] = ()


class ServedModel:
    """A version with its engine. `version` is its number in the registry, or the name that it was opened by."""

    def __init__(self, version: str, translator: Translator, decoder: Decoder):
        self.version, self.translator, self.decoder = version, translator, decoder
        self._reading = asyncio.Lock()  # one conversation is read at a time, in a thread: the event loop goes on

    def warm(self) -> None:
        """Decode a first list, which also shows that the engine works, and look up a first title; raise what fails."""
        self.translator.knows("?")  # spellings take seconds to read in a large catalog, and a request has a time limit
        (asked,) = self.translator.prepare([f"Some {self.translator.noun}, please"], 1)
        self.translator.items(self.decoder.warm(asked))

    async def ask(self, conversation: Conversation, reasons: bool = False, **options: Any) -> Answered:
        """Return the list of a conversation; `Recommender.recommend` describes the options and the errors.

        If the request is cancelled, so is the work on it.
        """
        asked = await self.prepare(conversation, **options)
        items = self.translator.items(await self.decoder.complete(asked))
        explain = partial(self.translator.explain, items, asked)
        return Answered(asked.row["messages"], items, await self.read(explain) if reasons else None, asked.wishes)

    async def prepare(self, conversation: Conversation, **options: Any) -> Prepared:
        """Return the request for a list; raise what `ask` raises for input that is rejected."""
        if self.translator.reads_slowly:  # several conversations at a time
            await asyncio.to_thread(self.translator.fetch, conversation)
        (asked,) = await self.read(partial(self.translator.prepare, [conversation], **options))
        return asked

    async def read(self, function: Callable[[], Result]) -> Result:
        """Return what a function of the request's texts returns, which is ended if the request is cancelled."""
        async with self._reading:
            call = Call(function)
            try:
                return await asyncio.wrap_future(call.result)
            finally:
                call.end()
