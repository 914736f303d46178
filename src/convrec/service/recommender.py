"""The recommender: conversations in, ranked lists of catalog items out."""

import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, overload

from convrec.data.catalog import Catalog
from convrec.generation.engine import TransformersEngine
from convrec.generation.lists import ListSettings
from convrec.generation.pretrained import load_model
from convrec.project.device import pick_device
from convrec.service.recommendation import Recommendation, RecommendedList
from convrec.service.scores import ItemScorer
from convrec.service.translation import LIST_LENGTH, Conversation, ModelFiles, Prepared, Translator

logger = logging.getLogger(__name__)

_BATCH = 64  # conversations per batch


class Recommender:
    """Answers conversations with lists of catalog items, each at most once, by default without items that were named.

    Lists are decoded greedily under the catalog constraint, with the settings that the model was tested with. Calls
    are thread-safe; they run one after the other. `noun` is the domain's word for the items, such as movies or books.
    """

    def __init__(self, model: Any, tokenizer: Any, catalog: Catalog, settings: ListSettings):
        """Raise `InputError` if the tokenizer cannot write an item of the catalog."""
        positions = getattr(model.config, "max_position_embeddings", None)
        self.catalog, self.noun = catalog, settings.items
        self.translator = Translator(catalog, tokenizer, settings, positions)
        self.model, self.settings = model.eval(), settings
        self.scorer = ItemScorer(model, self.translator)
        limits = (_BATCH, settings.max_completion_length, settings.repetition_penalty)
        self._engine = TransformersEngine(model, tokenizer, *limits, self.translator.trie)
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls,
        model: str | Path,
        catalog: str | Path,
        settings: ListSettings,
        device: str = "auto",
        trust_remote_code: bool = False,
    ) -> "Recommender":
        """Return the recommender of a Hugging Face folder and a canonical catalog file (Parquet)."""
        return cls.of_files(ModelFiles(Path(model), Path(catalog), settings, device, trust_remote_code))

    @classmethod
    def of_files(cls, files: ModelFiles) -> "Recommender":
        """Return the recommender of these files, on their device."""
        model = load_model(files.checkpoint, trust_remote_code=files.trust_remote_code, dtype="auto")
        catalog, tokenizer = files.load_texts()
        return cls(model.to(pick_device(files.device)), tokenizer, catalog, files.settings)

    @overload
    def recommend(  # type: ignore[overload-overlap]  # a str is also a sequence of str
        self,
        conversations: str,
        n: int = ...,
        deny: Collection[str] = ...,
        allow: Collection[str] | None = ...,
        or_fewer: bool = ...,
    ) -> RecommendedList: ...

    @overload
    def recommend(
        self,
        conversations: Sequence[Conversation],
        n: int = ...,
        deny: Collection[str] = ...,
        allow: Collection[str] | None = ...,
        or_fewer: bool = ...,
    ) -> list[RecommendedList]: ...

    def recommend(
        self,
        conversations: str | Sequence[Conversation],
        n: int = LIST_LENGTH,
        deny: Collection[str] = (),
        allow: Collection[str] | None = None,
        or_fewer: bool = False,
    ) -> RecommendedList | list[RecommendedList]:
        """Return exactly `n` items for each conversation, best first; for a single text, return its list.

        A conversation is a list of messages `{role, content}`, or a text: `User: …` and `Assistant: …` lines, or only
        the user's words. Items in `deny` are excluded. Items whose title the conversation names, with any year, are
        excluded unless the settings allow them (see `data.mentions`). With `allow`, only those items are recommended.
        Titles to deny or allow are `Title (Year)`, or `Title` for all items with that title; if `Title` is the whole
        line of an item, it means that item. With `or_fewer`, a list has all items that are left if those are
        fewer than `n`.

        Raises `InputError` for an unknown title, an unreadable conversation, or an `n` that is not from 1 to the number
        of items left.
        """
        if isinstance(conversations, str):
            return self.recommend([conversations], n, deny, allow, or_fewer)[0]
        asked = self.translator.prepare(conversations, n, deny, allow, or_fewer)
        order = sorted(range(len(asked)), key=lambda i: len(asked[i].prompt))
        lists = [RecommendedList() for _ in asked]
        with self._lock:
            for first in range(0, len(order), _BATCH):
                rows = order[first : first + _BATCH]
                for row, answer in zip(rows, self._answer([asked[i] for i in rows]), strict=True):
                    lists[row] = answer
                if len(order) > _BATCH:
                    logger.info("%d of %d conversations answered", first + len(rows), len(order))
        return lists

    def _answer(self, asked: Sequence[Prepared]) -> list[RecommendedList]:
        prompts = [one.prompt for one in asked]
        completions = self._engine.complete(prompts, [one.request for one in asked])
        items = [self.translator.items(completion) for completion in completions]
        scores = self.scorer.scores(prompts, completions, items)
        return [
            RecommendedList(
                Recommendation(rank, item.title, item.year, score)
                for rank, (item, score) in enumerate(zip(own, row, strict=True), start=1)
            )
            for own, row in zip(items, scores, strict=True)
        ]
