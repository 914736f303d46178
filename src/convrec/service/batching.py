"""Lists decoded together, with transformers: they join a batch between two tokens, and leave it when they end."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from convrec.generation.constraint import CatalogTrie, ConstraintState
from convrec.generation.engine import TokenIds
from convrec.project.errors import InputError
from convrec.service.translation import Prepared

logger = logging.getLogger(__name__)

Completion = Future[TokenIds]
_LEAST_FILL = 0.5  # of a batch of new prompts: the shortest is at least this share of the longest


@dataclass
class _Row:
    asked: Prepared
    completion: Completion
    slot: int  # its row in the constraint's state
    tokens: TokenIds = field(default_factory=list)

    @property
    def length(self) -> int:
        """The number of tokens in the cache: the last one written is not there yet."""
        return len(self.asked.prompt) + len(self.tokens) - 1


class Batcher:
    """Greedy decoding under the catalog constraint in a thread: the same lists as `TransformersEngine`.

    All rows end at the last column of the cache and are padded on the left. New prompts are prefilled together, sorted
    into batches of similar lengths, and then padded to the width of the cache, or the cache to theirs. When rows leave,
    the cache is cut to the longest row that is left, so its size is at most that of `max_rows` rows as long as the
    longest running one. `on_step` is called after each step with the number of tokens that it has written, one for each
    running list.
    """

    def __init__(
        self,
        model: Any,
        trie: CatalogTrie,
        end_token: int,
        repetition_penalty: float,
        max_rows: int,
        on_step: Callable[[int], None] = lambda tokens: None,
    ):
        """Raise `InputError` for a model whose layers keep another state than keys and values."""
        if model._is_stateful:
            raise InputError(f"{type(model).__name__}: its layers keep a recurrent state; serve it with --vllm-server")
        self._model, self._trie, self._end, self._penalty = model, trie, end_token, repetition_penalty
        self._max_rows, self._on_step = max_rows, on_step
        self._waiting: deque[tuple[Prepared, Completion]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._clear()
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
        return len(self._rows)

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _clear(self) -> None:
        self._rows: list[_Row] = []
        self._free_slots = list(range(self._max_rows))
        self._state: ConstraintState | None = None  # made when the first scores show the size of the vocabulary
        self._batch: _Batch | None = None

    def _run(self) -> None:
        while (joining := self._next()) is not None:
            try:
                self._join(joining)
                self._on_step(self._step())
            except Exception as error:
                logger.exception("decoding failed")
                for completion in (*(row.completion for row in self._rows), *(one for _, one in joining)):
                    if not completion.done() and completion.set_running_or_notify_cancel():
                        completion.set_exception(error)
                self._clear()
        del self._model, self._trie, self._state
        torch.cuda.empty_cache()

    def _next(self) -> list[tuple[Prepared, Completion]] | None:
        """Wait for work; return the requests that the batch has room for, in order of arrival, or None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._rows or self._is_closing)
            if not (self._waiting or self._rows):
                return None
        taken: list[tuple[Prepared, Completion]] = []
        while self._waiting and len(self._rows) + len(taken) < self._max_rows:
            asked, completion = self._waiting.popleft()
            if not completion.cancelled():
                taken.append((asked, completion))
        return taken

    @torch.inference_mode()
    def _join(self, requests: Sequence[tuple[Prepared, Completion]]) -> None:
        """Add requests to the batch."""
        for group in _similar(requests):
            prompts = [asked.prompt for asked, _ in group]
            width, device = max(map(len, prompts)), self._model.device
            ids = torch.tensor([[0] * (width - len(own)) + own for own in prompts], device=device)
            mask = torch.tensor([[0] * (width - len(own)) + [1] * len(own) for own in prompts], device=device)
            cache = DynamicCache()  # of whole layers also where the model has a sliding window, which its mask keeps
            scores = self._scores(ids, mask, cache)
            if self._state is None:
                self._state = ConstraintState(self._trie, [], scores.shape[1], capacity=self._max_rows)
            rows = [_Row(asked, completion, self._free_slots.pop()) for asked, completion in group]
            self._state.put([row.slot for row in rows], [row.asked.request for row in rows])
            seen = torch.zeros_like(scores, dtype=torch.bool)
            for own, prompt in zip(seen, prompts, strict=True):
                own[prompt] = True
            new = _Batch(cache, mask, seen)
            self._choose(new, rows, scores)
            self._batch = new if self._batch is None else self._batch.joined(new)
            self._rows += rows
        self._drop_finished()

    @torch.inference_mode()
    def _step(self) -> int:
        """Drop cancelled lists, write a token of each other list, and finish those that end; return the tokens."""
        self._keep([not row.completion.cancelled() for row in self._rows])
        batch = self._batch
        if batch is None:
            return 0
        batch.mask = pad(batch.mask, (0, 1), value=1)
        self._choose(batch, self._rows, self._scores(batch.last[:, None], batch.mask, batch.cache))
        num = len(self._rows)
        self._drop_finished()
        return num

    def _scores(self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Return the scores of the next token, (rows, V), and extend the cache by these tokens."""
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].to(dtype=torch.float32, copy=True)

    def _choose(self, batch: "_Batch", rows: Sequence[_Row], scores: torch.Tensor) -> None:
        """Write the best allowed token of each row; the penalty is transformers' `RepetitionPenaltyLogitsProcessor`."""
        assert self._state is not None
        if self._penalty != 1:
            penalized = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
            scores = torch.where(batch.seen, penalized, scores)
        slots = [row.slot for row in rows]
        batch.last = self._state.mask_(scores, slots).argmax(1)
        batch.seen.scatter_(1, batch.last[:, None], True)
        tokens = batch.last.tolist()
        self._state.advance(tokens, slots)
        for row, token in zip(rows, tokens, strict=True):
            row.tokens.append(token)

    def _drop_finished(self) -> None:
        for row in self._rows:
            if row.tokens[-1] == self._end and row.completion.set_running_or_notify_cancel():
                row.completion.set_result(row.tokens)
        self._keep([row.tokens[-1] != self._end for row in self._rows])

    def _keep(self, is_kept: Sequence[bool]) -> None:
        """Remove the other rows."""
        if all(is_kept) or self._batch is None:
            return
        self._free_slots += [row.slot for row, kept in zip(self._rows, is_kept, strict=True) if not kept]
        self._rows = [row for row, kept in zip(self._rows, is_kept, strict=True) if kept]
        if not self._rows:
            self._batch = None
        else:
            places = torch.tensor([place for place, kept in enumerate(is_kept) if kept], device=self._model.device)
            self._batch.select(places, max(row.length for row in self._rows))


@dataclass
class _Batch:
    """The tensors of B rows, all of which end at the last of W columns."""

    cache: Any  # a `DynamicCache`
    mask: torch.Tensor  # (B, W), 1 for tokens in the cache
    seen: torch.Tensor  # (B, V), the tokens of prompt and list, for the penalty
    last: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # (B,), the tokens to read next

    def joined(self, other: "_Batch") -> "_Batch":
        """Return the rows of both, with the wider one's columns."""
        width = max(self.mask.shape[1], other.mask.shape[1])
        left = [width - batch.mask.shape[1] for batch in (self, other)]
        for own, new in zip(self.cache.layers, other.cache.layers, strict=True):
            own.keys, own.values = (
                torch.cat([pad(part, (0, 0, num, 0)) for num, part in zip(left, parts, strict=True)])
                for parts in ((own.keys, new.keys), (own.values, new.values))
            )
        mask = torch.cat([pad(batch.mask, (num, 0)) for num, batch in zip(left, (self, other), strict=True)])
        seen, last = torch.cat([self.seen, other.seen]), torch.cat([self.last, other.last])
        return _Batch(self.cache, mask, seen, last)

    def select(self, places: torch.Tensor, width: int) -> None:
        """Keep these rows, and the last `width` columns."""
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[places, :, -width:], layer.values[places, :, -width:]
        self.mask = self.mask[places, -width:]
        self.seen, self.last = self.seen[places], self.last[places]


def _similar(requests: Iterable[tuple[Prepared, Completion]]) -> list[list[tuple[Prepared, Completion]]]:
    """Return groups of prompts so similar in length that little of their common width is padding."""
    groups: list[list[tuple[Prepared, Completion]]] = []
    for request in sorted(requests, key=lambda request: len(request[0].prompt)):
        if not groups or len(groups[-1][0][0].prompt) < _LEAST_FILL * len(request[0].prompt):
            groups.append([])
        groups[-1].append(request)
    return groups
