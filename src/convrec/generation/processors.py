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
    """Restricts `generate` to the requested lists: one request for each row of the batch. It serves one call."""

    def __init__(self, trie: CatalogTrie, requests: Sequence[ListRequest]):
        """Raise `InputError` for a request that cannot be met."""
        trie.check(requests)
        self._trie, self._requests = trie, requests
        self._state: ConstraintState | None = None
        self._input_ids = torch.empty(0)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Set the scores (rows, V) of what is not allowed to -inf and guide the others; return them.

        Raises `ValueError` for another batch than the one it began with.
        """
        if self._state is None:
            self._state = self._begin(input_ids, scores)
        else:
            self._follow(self._state, input_ids)
        self._input_ids = input_ids
        return self._state.mask_(scores.contiguous())  # type: ignore[return-value]

    def _begin(self, input_ids: torch.Tensor, scores: torch.Tensor) -> ConstraintState:
        if len(input_ids) != len(self._requests):
            raise ValueError(
                f"CatalogConstraint: {len(self._requests)} requests, but generate has {len(input_ids)} rows; give one "
                "request for each row, in the order of the batch"
            )
        return ConstraintState(self._trie, self._requests, scores.shape[1])

    def _follow(self, state: ConstraintState, input_ids: torch.Tensor) -> None:
        """Bring the state to the tokens written since the last step."""
        known = self._input_ids.shape[1]
        if input_ids.shape[1] <= known or not torch.equal(input_ids[:, :known], self._input_ids):
            raise ValueError("CatalogConstraint: this is not the batch it began with; make a new one for each generate")
        for tokens in input_ids[:, known:].T.tolist():
            state.advance(tokens)
        if state.lost.any():
            raise ValueError(
                f"CatalogConstraint: row {state.lost.tolist().index(True)} was given a token that is not allowed; "
                "let no other processor or option of generate force or forbid tokens"
            )
