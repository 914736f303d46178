"""The recommender: conversations in, ranked lists of catalog items out, with the scores of the items."""

import json
import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import pandas as pd
import torch

from convrec.data.catalog import Catalog, Item
from convrec.data.titles import line
from convrec.generation.engine import TokenIds, TransformersEngine
from convrec.generation.line_tokens import generation_prompt, tokenize_lines
from convrec.generation.lists import ListSettings
from convrec.generation.pretrained import load_model
from convrec.project.device import pick_device
from convrec.project.text import plain
from convrec.service.translation import LIST_LENGTH, Conversation, ModelFiles, Prepared, Translator
from convrec.training.rl.segmentation import newline_counts, segment_ranks

logger = logging.getLogger(__name__)

_BATCH = 64  # conversations per batch
_MAX_LOGITS = 2**26  # logits in memory at a time


@dataclass(frozen=True)
class Recommendation:
    """One item of a list; `score` is the mean log-probability of its tokens without the constraint, in nats."""

    rank: int
    title: str
    year: int | None
    score: float

    def __str__(self) -> str:
        return line(self.title, self.year)


class RecommendedList(list[Recommendation]):
    """The recommendations of one conversation, best first; it prints as a table."""

    def __str__(self) -> str:
        lines = [plain(str(item)) for item in self]
        width = max([len("item"), *map(len, lines)])
        rows = [f"{item.rank:>4}  {text:<{width}}  {item.score:>7.3f}" for item, text in zip(self, lines, strict=True)]
        return "\n".join([f"rank  {'item':<{width}}    score", *rows])

    __repr__ = __str__

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each recommendation: rank, title, year (missing if unknown), score."""
        frame = pd.DataFrame([asdict(item) for item in self], columns=["rank", "title", "year", "score"])
        return frame.astype({"year": "Int64"})

    def to_json(self) -> str:
        """Return a JSON array of objects."""
        return json.dumps([asdict(item) for item in self], ensure_ascii=False, indent=1)


class ItemScorer:
    """Scores the items of lists that a model has written."""

    def __init__(self, model: Any, translator: Translator):
        self._model, self._translator = model, translator
        self._newlines = newline_counts(translator.tokenizer)

    @torch.inference_mode()
    def scores(
        self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds], items: Sequence[Sequence[Item]]
    ) -> list[list[float]]:
        """Return the scores of each list's items; the last item gets the higher of two scores.

        One score is with the end of the list after the item, the other with a newline. The two can differ because a
        token of the item itself may contain the newline (`)\\n`), and the list ends here only because `n` is reached.
        """
        end = self._translator.tokenizer.eos_token_id
        written = [completion[: completion.index(end)] for completion in completions]
        ended = self._item_scores(prompts, written)
        continued = self._item_scores(prompts, self._with_newline(written, items))
        return [[*one[:-1], max(one[-1], other[-1])] for one, other in zip(ended, continued, strict=True)]

    def _with_newline(self, completions: Sequence[TokenIds], items: Sequence[Sequence[Item]]) -> list[TokenIds]:
        """Return the completions with a newline after the last item, as the tokenizer writes it there."""
        lines = sorted({str(own[-1]) for own in items})
        tokenizer = self._translator.tokenizer
        with self._translator.lock:
            tokens = dict(zip(lines, tokenize_lines(lines, tokenizer, generation_prompt(tokenizer)), strict=True))
        longer = []
        for completion, own in zip(completions, items, strict=True):
            last = tokens[str(own[-1])]
            if len(own) == 1:
                longer.append(list(last.first_before_newline))
            else:
                longer.append([*completion[: -len(last.later_at_end)], *last.later_before_newline])
        return longer

    def _item_scores(self, prompts: Sequence[TokenIds], completions: Sequence[TokenIds]) -> list[list[float]]:
        """Return the mean log-probability, in nats, of the tokens of each line, including its newline.

        The probabilities are the model's own, without constraint and repetition penalty.
        """
        length, device = max(map(len, completions)), self._model.device
        rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        written = torch.tensor([[0] * (length - len(c)) + [1] * len(c) for c in completions], device=device)
        scores = []
        chunk = max(1, _MAX_LOGITS // (length * self._model.config.vocab_size))
        for first in range(0, len(rows), chunk):
            part = slice(first, first + chunk)
            logits = self._model(
                input_ids=ids[part],
                attention_mask=mask[part],
                position_ids=(mask[part].cumsum(1) - 1).clamp(min=0),
                logits_to_keep=length + 1,
                use_cache=False,
            ).logits[:, :-1].float()  # fmt: skip
            own = logits.gather(2, ids[part, -length:, None]).squeeze(2) - logits.logsumexp(dim=2)
            ranks = segment_ranks(ids[part, -length:], written[part], self._newlines)
            for values, places in zip(own.cpu(), ranks.cpu(), strict=True):
                scores.append([float(values[places == rank].mean()) for rank in range(int(places.max()) + 1)])
        return scores


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
