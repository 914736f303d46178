"""A model that answers many requests at once."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

from convrec.data.catalog import Item
from convrec.generation.engine import TokenIds
from convrec.service.batching import Batcher
from convrec.service.reasons import Reasons
from convrec.service.recommender import ItemScorer, Recommender
from convrec.service.translation import Conversation, Filters, Messages, Prepared, Translator

_WARM_SECONDS = 600  # for the first list, in which a GPU compiles


class Decoder(Protocol):
    """Decodes the lists of a version: in this process, or on a server.

    Its properties say whether requests are answered, how many wait in this process, and how many are decoded.
    """

    def submit(self, asked: Prepared) -> Future[TokenIds]:
        """Return the future completion of a request, up to its end token or beyond.

        A request whose future is cancelled, waiting or running, is not computed further. Raises `RuntimeError` after
        `close`.
        """

    @property
    def is_alive(self) -> bool: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_running(self) -> int: ...

    def close(self) -> None:
        """Finish all requests, then free the memory; no request is accepted any more."""


class Answered(NamedTuple):
    """A list with the conversation and the filters that it answers, and what it took."""

    messages: Messages
    items: list[Item]
    scores: list[float] | None
    num_tokens: int
    filters: Filters


class ServedModel:
    """A version with its engine. `version` is its number in the registry, or the name that it was opened by."""

    def __init__(self, version: str, translator: Translator, decoder: Decoder, scorer: ItemScorer | None):
        self.version, self.translator, self.decoder = version, translator, decoder
        self.reasons = Reasons(translator.catalog, translator.mentions)
        self._scorer = scorer
        self._texts = ThreadPoolExecutor(1, "texts")  # the event loop goes on while a conversation is read

    @classmethod
    def of_recommender(
        cls, version: str, recommender: Recommender, max_rows: int, on_step: Callable[[int], None] = lambda tokens: None
    ) -> "ServedModel":
        """Return the model of a recommender, with continuous batching by transformers."""
        translator = recommender.translator
        end, penalty = translator.tokenizer.eos_token_id, recommender.settings.repetition_penalty
        batcher = Batcher(recommender.model, translator.trie, end, penalty, max_rows, on_step)
        return cls(version, translator, batcher, recommender.scorer)

    @property
    def has_scores(self) -> bool:
        """Whether the engine can score the items of a list."""
        return self._scorer is not None

    def warm(self) -> None:
        """Decode a first list, which also shows that the engine works; raise what fails."""
        (asked,) = self.translator.prepare([f"Some {self.translator.noun}, please"], 1)
        self.translator.items(self.decoder.submit(asked).result(_WARM_SECONDS))

    async def ask(self, conversation: Conversation, with_scores: bool = False, **options: Any) -> Answered:
        """Return the list of a conversation; `Recommender.recommend` describes the options and the errors.

        If the task is cancelled, the list is not decoded further.
        """
        loop = asyncio.get_running_loop()
        prepare = partial(self.translator.prepare, [conversation], **options)
        (asked,) = await loop.run_in_executor(self._texts, prepare)
        tokens = await asyncio.wrap_future(self.decoder.submit(asked))
        items, scores = self.translator.items(tokens), None
        if with_scores and self._scorer is not None:
            (scores,) = await asyncio.to_thread(self._scorer.scores, [asked.prompt], [tokens], [items])
        return Answered(asked.messages, items, scores, len(tokens), asked.filters)

    def close(self) -> None:
        """Finish the requests of the engine, and free its memory."""
        self.decoder.close()
        self._texts.shutdown()
        self._scorer = None
