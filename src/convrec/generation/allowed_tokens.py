"""What the catalog constraint allowed and guided at each token of known completions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from convrec.generation.constraint import Allowance, ConstraintState
from convrec.generation.trie import CatalogTrie, ListRequest, root_layers


@dataclass(frozen=True, eq=False)
class AllowedTokens:
    """The tokens allowed at T positions of each of B completions, as the places that differ from a base.

    The base of a position is a row of `bases`; `opened`, `closed` and `guided` are pairs of arrays, the position
    (counted row by row) and the column. A column is one of the trie's `tokens`. `bias` is what guidance adds to the
    logits of the guided places.
    """

    tokens: np.ndarray  # (A,), ascending: `CatalogTrie.alphabet`
    bases: np.ndarray  # (layers, A) booleans: the first tokens of roots, then none, then all
    layers: np.ndarray  # (B, T)
    opened: tuple[np.ndarray, np.ndarray]
    closed: tuple[np.ndarray, np.ndarray]
    guided: tuple[np.ndarray, np.ndarray]
    bias: np.ndarray  # (guided,), float32

    def rows(self, rows: slice) -> "AllowedTokens":
        """Return these completions alone."""
        layers, start = self.layers[rows], rows.start * self.layers.shape[1]
        places = [
            slice(*np.searchsorted(positions, [start, start + layers.size]))
            for positions, _ in (self.opened, self.closed, self.guided)
        ]
        opened, closed, guided = (
            (positions[own] - start, columns[own])
            for own, (positions, columns) in zip(places, (self.opened, self.closed, self.guided), strict=True)
        )
        return AllowedTokens(self.tokens, self.bases, layers, opened, closed, guided, self.bias[places[2]])

    @classmethod
    def stack(cls, rows: Sequence["AllowedTokens"], width: int) -> "AllowedTokens":
        """Return these completions as one batch of `width` positions; beyond a row's own, all is allowed."""
        layers = np.full((len(rows), width), len(rows[0].bases) - 1)
        for own, row in zip(layers, rows, strict=True):
            own[: row.layers.shape[1]] = row.layers[0, :width]
        opened, closed, guided = (
            (
                np.concatenate([at + i * width for i, (at, _) in enumerate(pairs)]),
                np.concatenate([to for _, to in pairs]),
            )
            for pairs in zip(*((row.opened, row.closed, row.guided) for row in rows), strict=True)
        )
        bias = np.concatenate([row.bias for row in rows])
        return cls(rows[0].tokens, rows[0].bases, layers, opened, closed, guided, bias)

    def booleans(self, device: torch.device | str = "cpu", vocab: int | None = None) -> torch.Tensor:
        """Return what is allowed as booleans on this device. Shape: (B, T, A), or (B, T, vocab) with a `vocab`."""
        size = self.layers.size
        parts = [self.layers.ravel(), *self.opened, *self.closed]
        one = torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)  # one transfer
        layers, opened_at, opened, closed_at, closed = one.split([len(part) for part in parts])
        allowed = torch.from_numpy(self.bases).to(device, non_blocking=True)[layers]
        allowed[opened_at, opened] = True
        allowed[closed_at, closed] = False
        allowed = allowed.view(*self.layers.shape, -1) if size else allowed
        if vocab is None:
            return allowed
        tokens = torch.from_numpy(self.tokens).to(device, non_blocking=True)
        return allowed.new_zeros(*allowed.shape[:2], vocab).index_copy(2, tokens, allowed)

    def guidance(
        self, device: torch.device | str, vocab: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the flat places of the guided logits and what is added to them, None where nothing is guided.

        The logits are (B, T, A), or (B, T, vocab).
        """
        if not len(self.bias):
            return None
        at, columns = self.guided
        places = at * self.bases.shape[1] + columns if vocab is None else at * vocab + self.tokens[columns]
        both = torch.from_numpy(places), torch.from_numpy(self.bias)
        return both[0].to(device, non_blocking=True), both[1].to(device, non_blocking=True)


def allowed_tokens(
    trie: CatalogTrie, requests: Sequence[ListRequest], completion_ids: np.ndarray, mask: np.ndarray
) -> AllowedTokens:
    """Return what was allowed at each token of the completions (B, T) that these requests led to.

    The mask (B, T) holds the tokens written, EOS included: from the left, without gaps. Where it is false all are
    allowed. Raises `ValueError` naming the first row with a token that was not.
    """
    state, width = ConstraintState(trie, requests, trie.vocab_size), mask.shape[1]
    _, bases = root_layers(trie)
    layers = np.full(mask.shape, len(bases) - 1)
    steps: list[tuple[np.ndarray, Allowance]] = []
    for time, (tokens, is_token) in enumerate(zip(completion_ids.T, mask.T, strict=True)):
        rows = np.flatnonzero(is_token)
        allowance = state.allowance(rows)
        layers[rows, time] = allowance.layers
        steps.append((rows * width + time, allowance))
        state.advance(tokens[rows], rows)
    if state.lost.any():
        row = int(np.flatnonzero(state.lost)[0])
        raise ValueError(f"completion {row}: it holds a token that its request does not allow; give the same request")
    columns = np.zeros(trie.vocab_size, np.int64)  # by token
    columns[trie.alphabet] = np.arange(len(trie.alphabet))
    opened, _ = _by_position([(positions, own.opened) for positions, own in steps], columns)
    closed, _ = _by_position([(positions, own.closed) for positions, own in steps], columns)
    guided, order = _by_position([(positions, own.guided) for positions, own in steps], columns)
    bias = np.concatenate([own.bias for _, own in steps])[order]
    return AllowedTokens(trie.alphabet, bases, layers, opened, closed, guided, bias)


def _by_position(
    steps: Sequence[tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]], columns: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the positions, ascending, and columns of the rows and tokens of all steps, and their order among these.

    `steps` has the position of each row in a step, then the rows and tokens.
    """
    at = np.concatenate([positions[rows] for positions, (rows, _) in steps])
    tokens = np.concatenate([tokens for _, (_, tokens) in steps])
    order = np.argsort(at, kind="stable")
    return (at[order], columns[tokens[order]]), order
