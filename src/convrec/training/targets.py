"""What each token of a training list should be: a distribution over the items that people liked, or one given token.

A list begins with the liked items in random order, anew in each epoch. At each rank, the target is uniform over those
that are not written yet; at the node of the catalog's trie that a title has reached, it is the share of these below
each token. So the model learns what is liked, and not in which order. The items of a demonstration follow, one by one.

Where each item is one token, the first distribution ranks the catalog (`CatalogTrie.is_one_pass`), so it alone is
learned: its target is uniform over all liked items, mixed with the demonstration's, which fall with their rank.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from convrec.generation.line_tokens import LineTokens, Tokens

IGNORED = -100  # the label of a token that is not learned, as in transformers


class Written(NamedTuple):
    """A list's T tokens, and for each its weight in the loss and its target: tokens, and their probabilities."""

    tokens: list[int]
    weights: list[float]
    targets: list[tuple[list[int], list[float]]]


def one_target(
    liked: Sequence[int], others: Sequence[int], lines: Sequence[LineTokens], others_weight: float
) -> Written:
    """Return the one token of a list that is read in one pass, and its target.

    The liked items have equal shares; others have `others_weight` times as much together, the one of rank k in
    proportion to 1 / log2(k + 1). Shape: liked, others: catalog indices; lines (C,), each item one token.
    """
    others = others if others_weight else ()
    discounts = 1 / np.log2(np.arange(len(others)) + 2)
    shares = [np.ones(len(liked)) / max(1, len(liked)), others_weight * discounts / max(1e-9, discounts.sum())]
    every = np.concatenate(shares)
    tokens = [lines[item].first_before_newline[0] for item in (*liked, *others)]
    weight = 1.0 if len(liked) else others_weight
    return Written(tokens[:1], [weight], [(tokens, (every / every.sum()).tolist())])


def write_list(
    liked: Sequence[int],
    others: Sequence[int],
    lines: Sequence[LineTokens],
    end: int,
    length: int,
    others_weight: float,
) -> Written:
    """Return a list of at most `length` items: the liked ones, which are learned as a set, and then the others.

    Others have `others_weight` in the loss; with 0 they are left out. A list of `length` items ends with the token
    `end`, a shorter one is open: it does not say that nothing else is liked.

    Shape: liked, others: catalog indices, in the order in which they are written; lines (C,).
    """
    tokens: list[int] = []
    weights: list[float] = []
    targets: list[tuple[list[int], list[float]]] = []
    items = [*liked, *(others if others_weight else ())][:length]
    for rank, item in enumerate(items):
        place = 2 * (rank > 0) + (rank == length - 1)
        own = lines[item][place]
        open_lines = [lines[other][place] for other in (liked[rank:] if rank < len(liked) else [item])]
        tokens += own
        weights += [1.0 if rank < len(liked) else others_weight] * len(own)
        targets += _next_tokens(own, open_lines)
    if len(items) == length:
        tokens.append(end)
        weights.append(weights[-1])
        targets.append(([end], [1.0]))
    return Written(tokens, weights, targets)


def _next_tokens(own: Tokens, open_lines: Sequence[Tokens]) -> list[tuple[list[int], list[float]]]:
    """Return for each token of a line the tokens with which the open lines go on from there, and their shares."""
    found = []
    for depth in range(len(own)):
        open_lines = [line for line in open_lines if line[:depth] == own[:depth]]
        tokens, counts = np.unique([line[depth] for line in open_lines], return_counts=True)
        found.append((tokens.tolist(), (counts / counts.sum()).tolist()))
    return found


class ListCollator:
    """Writes the lists of a batch of rows, which have `prompt` (token ids), `row`, `liked` and `others` (items).

    The order of the liked items depends on seed, epoch and `row` alone. The trainer sets `epoch`, and `collate`, which
    makes a batch of sequences with `input_ids` and `labels`, in which `IGNORED` tokens are not learned. Beside what
    that returns, a batch has the learned positions' `target_weights` (P,), in the order of rows, and their targets as
    the entries of a sparse matrix (P, vocab): `target_rows`, `target_tokens`, `target_shares` (E,); but none of these
    where all targets are one token of weight 1.
    """

    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]

    def __init__(self, lines: Sequence[LineTokens], end: int, length: int, others_weight: float, seed: int):
        self._lines, self._end, self._length = lines, end, length
        self._others_weight, self._seed = others_weight, seed
        self._is_one_pass = all(len(own) == 1 for line in lines for own in line)
        self.epoch = 0

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        examples, weights, targets = [], list[float](), list[tuple[list[int], list[float]]]()
        for row in rows:
            liked = np.random.default_rng([self._seed, self.epoch, row["row"]]).permutation(row["liked"]).tolist()
            own = self._write(liked, row["others"])
            prompt = row["prompt"]
            examples.append({"input_ids": prompt + own.tokens, "labels": [IGNORED] * len(prompt) + own.tokens})
            weights += own.weights
            targets += own.targets
        sizes = [len(tokens) for tokens, _ in targets]
        if max(sizes) == 1 and min(weights) == 1:  # TRL's loss, which keeps no logits, is the same
            return self.collate(examples)
        return {
            **self.collate(examples),
            "target_weights": torch.tensor(weights),
            "target_rows": torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)),
            "target_tokens": torch.tensor([token for tokens, _ in targets for token in tokens]),
            "target_shares": torch.tensor([share for _, shares in targets for share in shares]),
        }

    def _write(self, liked: list[int], others: list[int]) -> Written:
        if self._is_one_pass:
            return one_target(liked, others, self._lines, self._others_weight)
        return write_list(liked, others, self._lines, self._end, self._length, self._others_weight)


def target_loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return Σ weight · cross-entropy of the learned positions, as `ListCollator` describes them; in nats.

    Shape: logits (P, vocab); returns a scalar.
    """
    log_probs = logits.float().log_softmax(dim=-1) if logits.dtype.itemsize < 4 else logits.log_softmax(dim=-1)
    rows = batch["target_rows"]
    entries = log_probs[rows, batch["target_tokens"]] * batch["target_shares"] * batch["target_weights"][rows]
    return -entries.sum()
