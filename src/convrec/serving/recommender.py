"""The recommender: conversations in, ranked lists of catalog items out."""

import difflib
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch

from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import ROLES, messages_of, usable_role
from convrec.data.mentions import Mentions
from convrec.data.parquet import MAX_ITEMS, parquet_frame
from convrec.data.titles import title_and_year
from convrec.errors import InputError
from convrec.generation.constraint import ListRequest, catalog_trie
from convrec.generation.engine import TransformersEngine, token_ids
from convrec.generation.line_tokens import generation_prompt, tokenize_lines
from convrec.generation.lists import ListSettings
from convrec.hardware.device import pick_device
from convrec.models.pretrained import load_model, load_tokenizer
from convrec.rl.segmentation import newline_counts, segment_ranks
from convrec.serving.recommendation import Recommendation, RecommendedList
from convrec.text import is_clean

logger = logging.getLogger(__name__)

Messages = list[dict[str, str]]
Conversation = str | Sequence[Mapping[str, str]]

LIST_LENGTH = 20  # default number of items in a list
_BATCH = 64  # conversations per batch
_MAX_LOGITS = 2**26  # logits in memory at a time when items are scored


class Abandoned(Exception):
    """The caller no longer waits for the answer."""


class Recommender:
    """Answers conversations with lists of catalog items, each at most once, by default without items that were named.

    Lists are decoded greedily under the catalog constraint, with the settings that the model was tested with. Calls
    are thread-safe; they run one after the other. `noun` is the domain's word for the items, such as movies or books;
    `mentions` finds the catalog's titles in texts.
    """

    def __init__(self, model: Any, tokenizer: Any, catalog: Catalog, settings: ListSettings):
        """Raise `InputError` if the tokenizer cannot write an item of the catalog."""
        self.catalog, self.noun, self._recommend_seen = catalog, settings.items, settings.recommend_seen
        self._model, self._tokenizer = model.eval(), tokenizer
        self._prompts = settings.prompts(tokenizer)
        self.mentions = Mentions(catalog)
        self._trie = catalog_trie(catalog, tokenizer)
        limits = (_BATCH, settings.max_completion_length, settings.repetition_penalty)
        self._engine = TransformersEngine(model, tokenizer, *limits, self._trie)
        self._newlines = newline_counts(tokenizer)
        self._positions = getattr(model.config, "max_position_embeddings", None)
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
        weights = load_model(model, trust_remote_code=trust_remote_code, dtype="auto")
        weights.to(pick_device(device))
        tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
        return cls(weights, tokenizer, Catalog.from_frame(parquet_frame(Path(catalog), max_rows=MAX_ITEMS)), settings)

    @overload
    def recommend(  # type: ignore[overload-overlap]  # a str is also a sequence of str
        self,
        conversations: str,
        n: int = ...,
        deny: Collection[str] = ...,
        allow: Collection[str] | None = ...,
        is_abandoned: Callable[[], bool] = ...,
        or_fewer: bool = ...,
    ) -> RecommendedList: ...

    @overload
    def recommend(
        self,
        conversations: Sequence[Conversation],
        n: int = ...,
        deny: Collection[str] = ...,
        allow: Collection[str] | None = ...,
        is_abandoned: Callable[[], bool] = ...,
        or_fewer: bool = ...,
    ) -> list[RecommendedList]: ...

    def recommend(
        self,
        conversations: str | Sequence[Conversation],
        n: int = LIST_LENGTH,
        deny: Collection[str] = (),
        allow: Collection[str] | None = None,
        is_abandoned: Callable[[], bool] = lambda: False,
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
        of items left, and `Abandoned` as soon as `is_abandoned`, which is called after each token, returns true.
        """

        def go_on() -> None:
            if is_abandoned():
                raise Abandoned

        go_on()
        if isinstance(conversations, str):
            return self.recommend([conversations], n, deny, allow, is_abandoned, or_fewer)[0]
        turns = [messages_from(value, place) for place, value in enumerate(conversations, start=1)]
        denied = self._resolve("deny", deny)
        allowed = None if allow is None else self._resolve("allow", allow)
        options = (n, denied, allowed, or_fewer)
        requests = [self._request(messages, place, *options) for place, messages in enumerate(turns, start=1)]
        if not turns:
            return []
        room = self._room(max(request.length for request in requests))
        prompts = token_ids(self._tokenizer, [self._prompts(messages, room) for messages in turns])
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        lists = [RecommendedList() for _ in prompts]
        with self._lock:
            for first in range(0, len(order), _BATCH):
                rows = order[first : first + _BATCH]
                go_on()
                answers = self._answer([prompts[i] for i in rows], [requests[i] for i in rows], go_on)
                for row, answer in zip(rows, answers, strict=True):
                    lists[row] = answer
                if len(order) > _BATCH:
                    logger.info("%d of %d conversations answered", first + len(rows), len(order))
        return lists

    def knows(self, title: str) -> bool:
        """Return whether a title to deny or allow is in the catalog."""
        return bool(self._items_of(title))

    def check_titles(self, name: str, titles: Collection[str]) -> None:
        """Raise `InputError` if one of the titles is not in the catalog; `name` is the field in the message."""
        self._resolve(name, titles)

    def _resolve(self, name: str, titles: Collection[str]) -> set[int]:
        if isinstance(titles, str) or not all(isinstance(title, str) for title in titles):
            raise InputError(
                f"{name}: {titles!r} is not a list of titles; give texts such as {str(self.catalog.items[0])!r}"
            )
        found: set[int] = set()
        for written in titles:
            indices = self._items_of(written)
            if not indices:
                known = [item.title for item in self.catalog.items]
                near = difflib.get_close_matches(title_and_year(written)[0], known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "write it as the catalog does"
                raise InputError(f"{name}: {written!r} is not in the catalog; {hint}")
            found.update(indices)
        return found

    def _items_of(self, written: str) -> list[int]:
        exact = self.catalog.index_of_line(written.strip())
        if exact is not None:
            return [exact]
        title, year = title_and_year(written)
        if not year:
            return self.catalog.indices_of_title(title) or self.catalog.readings(title, None)
        index = self.catalog.find(title, int(year))
        return self.catalog.readings(title, int(year)) if index is None else [index]

    def _request(
        self, messages: Messages, place: int, n: int, denied: set[int], allowed: set[int] | None, or_fewer: bool
    ) -> ListRequest:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise InputError(f"n = {n!r}: give a whole number from 1")
        banned = denied
        if not self._recommend_seen:
            named = self.mentions.titles(message["content"] for message in messages if message["role"] != "system")
            banned = denied | self.catalog.indices_of_titles(named)
        left = len((set(range(len(self.catalog))) if allowed is None else allowed) - banned)
        if n > left and (left == 0 or not or_fewer):
            raise InputError(
                f"n = {n}: {left} of the catalog's {len(self.catalog)} items are left for conversation {place}, "
                "without those that it names and those denied or not allowed; lower n, deny fewer titles, or allow more"
            )
        return ListRequest(min(n, left), banned, allowed)

    def _room(self, n: int) -> int | None:
        """Return the number of tokens left for a prompt with a list of `n` items; None if the model has no limit."""
        if self._positions is None:
            return None
        room = self._positions - self._trie.longest(n)
        if room < self._prompts.least:
            raise InputError(f"n = {n}: the list leaves no room for the conversation in the model's context; lower n")
        return room

    @torch.inference_mode()
    def _answer(
        self, prompts: list[list[int]], requests: list[ListRequest], go_on: Callable[[], None]
    ) -> list[RecommendedList]:
        end = self._tokenizer.eos_token_id
        completions = [row[: row.index(end)] for row in self._engine.complete(prompts, requests, go_on)]
        items = [self._items(completion) for completion in completions]
        scores = self._scores(prompts, completions, items)
        return [
            RecommendedList(
                Recommendation(rank, item.title, item.year, score) for rank, (item, score) in enumerate(pairs, start=1)
            )
            for pairs in (zip(own, row, strict=True) for own, row in zip(items, scores, strict=True))
        ]

    def _items(self, completion: list[int]) -> list[Item]:
        indices = [self.catalog.index_of_line(line) for line in self._tokenizer.decode(completion).split("\n")]
        if None in indices:
            raise RuntimeError(f"{completion} was generated under the constraint, but not all its lines are items")
        return [self.catalog.items[index] for index in indices if index is not None]

    def _scores(
        self, prompts: list[list[int]], completions: list[list[int]], items: list[list[Item]]
    ) -> list[list[float]]:
        """Return the scores of each list's items; the last item gets the higher of two scores.

        One score is with the end of the list after the item, the other with a newline. The two can differ because a
        token of the item itself may contain the newline (`)\\n`), and the list ends here only because `n` is reached.
        """
        ended = self._item_scores(prompts, completions)
        lines = sorted({str(own[-1]) for own in items})
        tokens = dict(
            zip(lines, tokenize_lines(lines, self._tokenizer, generation_prompt(self._tokenizer)), strict=True)
        )
        longer = []
        for completion, own in zip(completions, items, strict=True):
            last = tokens[str(own[-1])]
            if len(own) == 1:
                longer.append(list(last.first_before_newline))
            else:
                longer.append([*completion[: -len(last.later_at_end)], *last.later_before_newline])
        continued = self._item_scores(prompts, longer)
        return [[*one[:-1], max(one[-1], other[-1])] for one, other in zip(ended, continued, strict=True)]

    def _item_scores(self, prompts: list[list[int]], completions: list[list[int]]) -> list[list[float]]:
        """Return the mean log-probability, in nats, of the tokens of each line, including its newline.

        The probabilities are the model's own, without constraint and repetition penalty.
        """
        length, device = max(map(len, completions)), self._model.device
        rows = [[*prompt, *completion] for prompt, completion in zip(prompts, completions, strict=True)]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
        written = torch.tensor([[0] * (length - len(c)) + [1] * len(c) for c in completions], device=device)
        log_probs = []
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
            own = logits.gather(2, ids[part, -length:, None]).squeeze(2)
            log_probs.append(own - logits.logsumexp(dim=2))
        ranks = segment_ranks(ids[:, -length:], written, self._newlines)
        sums = torch.zeros(len(rows), int(ranks.max()) + 1, device=device)
        counts, places = sums.clone(), ranks.clamp(min=0)
        sums.scatter_add_(1, places, torch.cat(log_probs).masked_fill(written == 0, 0.0))
        counts.scatter_add_(1, places, written.float())
        return [row[: int(last) + 1] for row, last in zip((sums / counts).tolist(), ranks.amax(1), strict=True)]


def messages_from(value: Any, place: int = 1) -> Messages:
    """Return the messages of a conversation given as text or messages, without blank ones.

    Raises `InputError` for anything else and for an empty conversation; `place` is its number in the message.
    """
    where = f"conversation {place}"
    if isinstance(value, str):
        messages = messages_of(value)
    elif isinstance(value, Sequence):
        messages = [_message(message, where) for message in value]
    else:
        raise InputError(f"{where}: {value!r:.60} is neither text nor a list of messages {{role, content}}")
    if not all(is_clean(message["content"]) for message in messages):
        raise InputError(f"{where}: contains a NUL, or text that is not UTF-8; give UTF-8 text")
    messages = [message for message in messages if message["content"].strip()]
    if not any(message["role"] != "system" for message in messages):
        raise InputError(f"{where}: it is empty; give at least one user turn")
    return messages


def _message(message: Any, where: str) -> dict[str, str]:
    if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
        raise InputError(f"{where}: {message!r:.60} is not a message; give {{'role': 'user', 'content': 'words'}}")
    role, content = usable_role(message["role"]), message["content"]
    if role is None:
        raise InputError(f"{where}: role {message['role']!r:.60} is not known; give one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise InputError(f"{where}: content {content!r:.60} is not a text; give the words of the turn")
    return {"role": role, "content": content}
