"""The recommender: conversations in, ranked lists of catalog items out."""

import json
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

import pandas as pd

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.titles import line
from convrec.data.wishes import Wish, summary
from convrec.generation.engine import TokenIds, TransformersEngine
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import standalone
from convrec.generation.pretrained import load_model
from convrec.generation.trie import Guide
from convrec.project.device import pick_device
from convrec.project.text import columns, hung, plain
from convrec.service.translation import LIST_LENGTH, Conversation, ModelFiles, Prepared, Translator

logger = logging.getLogger(__name__)

_BATCH = 64  # conversations per batch
_REASON = 30  # columns that a reason needs beside its item


@dataclass(frozen=True)
class Recommendation:
    """One item of a list."""

    rank: int
    title: str
    year: int | None
    reasons: tuple[str, ...] | None = None  # None if they were not asked for

    def __str__(self) -> str:
        return line(self.title, self.year)


class RecommendedList(list[Recommendation]):
    """The recommendations of one conversation, best first; it prints as a table, below the wishes that it keeps."""

    wishes: Sequence[Wish] = ()

    def __str__(self) -> str:
        rows = [(item.rank, plain(str(item)), plain("; ".join(item.reasons or ()))) for item in self]
        width = max(map(len, ["item", *(item for _, item, _ in rows)]))
        beside = any(reason for *_, reason in rows) and columns() >= len("rank  ") + width + _REASON
        head = ("rank", "item", "reasons" if beside else "")
        lines = hung("", plain(summary(self.wishes))) if self.wishes else []
        for rank, item, reason in (head, *rows):
            start, text = (f"{item:<{width}}  ", reason) if beside else ("", f"{item}\n{reason}".strip())
            lines += hung(f"{rank:>4}  {start}", text)
        return "\n".join(filter(None, lines))

    __repr__ = __str__

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each recommendation: rank, title, year (missing if unknown)."""
        frame = pd.DataFrame([asdict(item) for item in self], columns=["rank", "title", "year"])
        return frame.astype({"year": "Int64"})

    def to_json(self) -> str:
        """Return a JSON array of objects, with reasons if they were asked for."""
        are_asked = any(item.reasons is not None for item in self)
        rows = [{key: value for key, value in asdict(item).items() if are_asked or key != "reasons"} for item in self]
        return json.dumps(rows, ensure_ascii=False, indent=1)


class Recommender:
    """Answers conversations with lists of catalog items, each at most once, by default without items that were named.

    Lists are decoded greedily under the catalog constraint, with the settings that the model was tested with. Calls
    are thread-safe; they run one after the other. `noun` is the domain's word for the items, such as movies or books.
    """

    def __init__(
        self, model: Any, tokenizer: Any, catalog: Catalog, settings: ListSettings, guide: Guide | None = None
    ):
        """Raise `InputError` if the tokenizer cannot write an item of the catalog."""
        positions = getattr(model.config, "max_position_embeddings", None)
        self.catalog, self.noun = catalog, settings.items
        self.translator = Translator(catalog, tokenizer, settings, positions, guide)
        limits = (_BATCH, settings.max_completion_length, settings.repetition_penalty)
        self._engine = TransformersEngine(model, tokenizer, *limits, self.translator.trie)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, files: ModelFiles) -> "Recommender":
        """Return the recommender of a model's files, on their device."""
        catalog, tokenizer, newer = files.load_texts()
        with standalone(files.checkpoint, newer, files.trust_remote_code) as folder:
            model = load_model(folder, trust_remote_code=files.trust_remote_code, dtype="auto")
        guide = Guidance.load(files.guidance, catalog)
        return cls(model.to(pick_device(files.device)), tokenizer, catalog, files.settings, guide)

    @overload
    def recommend(self, conversations: str, *arguments: Any, **options: Any) -> RecommendedList: ...

    @overload
    def recommend(
        self, conversations: Sequence[Conversation], *arguments: Any, **options: Any
    ) -> list[RecommendedList]: ...

    def recommend(
        self,
        conversations: str | Sequence[Conversation],
        n: int = LIST_LENGTH,
        deny: Collection[str] = (),
        allow: Collection[str] | None = None,
        or_fewer: bool = False,
        reasons: bool = False,
        wishes: Mapping[str, bool] | None = None,
    ) -> RecommendedList | list[RecommendedList]:
        """Return exactly `n` items for each conversation, best first; for a single text, return its list.

        A conversation is a list of messages `{role, content}`, or a text: `User: …` and `Assistant: …` lines, or only
        the user's words. Items in `deny` are excluded. Items whose title the conversation names, with any year, are
        excluded unless the settings allow them (see `data.mentions`). With `allow`, only those items are recommended.
        Titles to deny or allow are `Title (Year)`, or `Title` for all items with that title; if `Title` is the whole
        line of an item, it means that item. With `or_fewer`, a list has all items that are left if those are
        fewer than `n`. With `reasons`, recommendations say why they may fit: what they share with the conversation, and
        how many people with similar requests liked them.

        A list keeps the wishes that its conversation states (see `data.wishes`). Its attribute `wishes` names them; the
        argument maps the text of a wish to whether it is kept.

        Raises `InputError` for an unknown title, an unreadable conversation, or an `n` that is not from 1 to the number
        of items left.
        """
        if isinstance(conversations, str):
            return self.recommend([conversations], n, deny, allow, or_fewer, reasons, wishes)[0]
        asked = self.translator.prepare(conversations, n, deny, allow, or_fewer, wishes)
        order = sorted(range(len(asked)), key=lambda i: len(asked[i].prompt))
        lists = [RecommendedList() for _ in asked]
        for first in range(0, len(order), _BATCH):
            rows = order[first : first + _BATCH]
            for row, tokens in zip(rows, self.complete([asked[i] for i in rows]), strict=True):
                items = self.translator.items(tokens)
                why = map(tuple, self.translator.explain(items, asked[row])) if reasons else [None] * len(items)
                lists[row] = RecommendedList(
                    Recommendation(rank, item.title, item.year, own)
                    for rank, (item, own) in enumerate(zip(items, why, strict=True), start=1)
                )
                lists[row].wishes = asked[row].wishes
            if len(order) > _BATCH:
                logger.info("%d of %d conversations answered", first + len(rows), len(order))
        return lists

    def complete(self, asked: Sequence[Prepared]) -> list[TokenIds]:
        """Return the tokens of each list, all guided and decoded as one batch; behind its end token may be others."""
        with self._lock:
            return self._engine.complete([one.prompt for one in asked], self.translator.guided(asked))
