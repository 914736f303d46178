"""Arguments of transformers' `generate`: its settings, and the catalog constraint."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor

from convrec.generation.constraint import ConstraintState
from convrec.generation.trie import CatalogTrie, ListRequest


def without_adapters(model: Any) -> Any:
    """Return the model that adapters are added to, or the model itself where it has none."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def only_settings(model: Any, config: GenerationConfig) -> Iterator[None]:
    """Make `generate` use only this configuration; by default, the model's own fills unset values."""
    base = without_adapters(model)
    own, base.generation_config = base.generation_config, config
    try:
        yield
    finally:
        base.generation_config = own


class CatalogConstraint(LogitsProcessor):
    """Restricts `generate` to the requested lists: one request per prompt, in the order of the batch.

    Each prompt may have several rows, as in beam search and with several return sequences. It serves one call of
    `generate`.
    """

    def __init__(self, trie: CatalogTrie, requests: Sequence[ListRequest]):
        """Raise `InputError` for a request that cannot be met."""
        trie.check(requests)
        self._trie, self._requests = trie, list(requests)
        self._state: ConstraintState | None = None
        self._prompt_length = 0
        self._may_lose = False
        self._input_ids = torch.empty(0)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Set the scores (rows, V) of what is not allowed to -inf and guide the others, in place, and return them.

        Raises `ValueError` for another batch than the one it began with.
        """
        if self._state is None:
            self._prompt_length = input_ids.shape[1]
            self._state = self._begin(input_ids, scores)
        else:
            self._follow(self._state, input_ids, scores)
        self._input_ids = input_ids
        return self._state.mask_(scores, of_beams=self._may_lose)  # type: ignore[return-value]

    @property
    def state_bytes(self) -> int:
        """The memory that the state of the batch takes, in bytes; 0 before the first step."""
        return self._state.nbytes if self._state else 0

    def _begin(self, input_ids: torch.Tensor, scores: torch.Tensor) -> ConstraintState:
        each, rest = divmod(len(input_ids), len(self._requests)) if self._requests else (0, 1)
        if rest or not each:
            raise ValueError(
                f"CatalogConstraint: {len(self._requests)} requests, but generate has {len(input_ids)} rows; give one "
                "request a prompt, in the order of the batch"
            )
        self._requests = [request for request in self._requests for _ in range(each)]
        self._may_lose = each > 1  # beam search keeps rows of score -inf where too few others are left
        return ConstraintState(self._trie, self._requests, scores.shape[1])

    def _follow(self, state: ConstraintState, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        """Bring the state to the tokens written since the last step, or all of them where rows changed places."""
        prompt, length = self._prompt_length, self._input_ids.shape[1]
        longer = len(input_ids) == len(self._input_ids) and input_ids.shape[1] > length
        if longer and torch.equal(input_ids[:, :length], self._input_ids):
            written = input_ids[:, length:]
        elif not longer or not torch.equal(input_ids[:, :prompt], self._input_ids[:, :prompt]):
            raise ValueError("CatalogConstraint: this is not the batch it began with; make a new one for each generate")
        else:
            written = input_ids[:, prompt:]
            state.put(range(len(input_ids)), self._requests)
        for tokens in written.T.tolist():
            state.advance(tokens)
        if not self._may_lose and state.lost.any():
            raise ValueError(
                f"CatalogConstraint: row {state.lost.tolist().index(True)} was given a token that is not allowed; "
                "let no other processor or option of generate force or forbid tokens"
            )
