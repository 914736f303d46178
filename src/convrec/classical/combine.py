"""Combine: the weights of several scores of the same conversations, fitted to what people liked.

The likelihood of all that was liked is smooth and gives a start; it spends weight on the tail of the catalog, where no
list reaches, so the weights then climb to the best NDCG, and only their common scale is fitted by likelihood again.
"""

import logging
from array import array
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.optimize import minimize

from convrec.classical.scores import Blocks, WeightedSum, flat_entries, row_blocks
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, truths
from convrec.data.row_wishes import wishes_of
from convrec.data.wishes import apply

logger = logging.getLogger(__name__)

_PENALTY = 1e-3  # of a squared weight: a term that says nothing gets weight 0
_BEST = 100  # items of each term that lists are made of while the weights climb
_STEPS = (0.0, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0)
_FIRST = 0.1  # what a weight of 0 is multiplied from
_LEAST_GAIN = 1e-4  # of NDCG in a round over all weights
_KEPT = 2**30  # bytes of scores that stay in memory during a fit; of more, only entries of blocks that have few do
_FEW = 1 / 16  # of the cells of a block


class Weights(NamedTuple):
    """The weight of each term, and the mean NDCG of the fitted rows with these and with those of the start, if any."""

    values: dict[str, float]
    ndcg: float | None
    ndcg_before: float | None


_Entries = tuple[torch.Tensor, torch.Tensor]  # places in the flattened block of the scores that are not 0; the scores


class _Kept:
    """The blocks of scores for a caller that changes none, each computed once, if it is kept: as entries, or whole."""

    def __init__(self, scores: Blocks, whole: bool):
        self._scores, self._whole = scores, whole
        self._blocks: dict[bytes, torch.Tensor | _Entries | None] = {}

    def block(self, rows: np.ndarray) -> torch.Tensor | _Entries:
        """Return the scores of some conversations. Shape: (rows, C), float32."""
        key = rows.tobytes()
        if (kept := self._blocks.get(key)) is not None:
            return kept
        block = self._scores.block(rows)
        if self._whole:
            self._blocks[key] = block
        elif key not in self._blocks:
            places = block.view(-1).nonzero().ravel()
            self._blocks[key] = (places, block.view(-1)[places]) if len(places) < _FEW * block.numel() else None
        return block


def count_positives(rows: Sequence[Row], prompts: Sequence[Row], catalog: Catalog) -> sparse.csr_array:
    """Return how often each item is ground truth of each prompt, over all its rows. Shape: (prompts, C)."""
    position = {row["prompt_id"]: index for index, row in enumerate(prompts)}
    pairs = [
        (position[row["prompt_id"]], index)
        for row in rows
        if row["prompt_id"] in position
        for index in (catalog.find(truth.title, truth.year) for truth in truths(row))
        if index is not None
    ]
    at = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    counts = np.ones(len(pairs), dtype=np.float32)
    return sparse.csr_array((counts, (at[0], at[1])), shape=(len(prompts), len(catalog)))  # equal places are summed


def closed_items(prompts: Sequence[Row], catalog: Catalog, length: int) -> "list[array[int]]":
    """Return the catalog indices of what a list of `length` items may not hold: seen ones, and those against wishes."""
    found = []
    for row in prompts:
        is_open = np.ones(len(catalog), dtype=bool)
        is_open[list(catalog.indices_of_titles(row["seen_titles"]))] = False
        left, _ = apply(wishes_of(row, catalog), is_open, length)
        found.append(array("i", np.flatnonzero(~left).astype(np.int32).tobytes()))  # 4 bytes each
    return found


def multinomial_residual(scores: torch.Tensor, positives: sparse.csr_array) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the negative multinomial log-likelihood of the positives, summed over the rows, and its gradient.

    With n positives in a row, the gradient by the scores is n · softmax(scores) - positives.

    Shape: scores, positives (rows, C); returns a scalar and (rows, C).
    """
    positions, counts = flat_entries(positives)
    positions, counts = positions.to(scores.device), counts.to(scores)
    totals = torch.from_numpy(positives.sum(axis=1)).to(scores)
    log_probability = torch.log_softmax(scores, dim=1)
    loss = -(log_probability.view(-1)[positions] * counts).sum()
    residual = log_probability.exp_().mul_(totals[:, None])
    residual.view(-1)[positions] -= counts
    return loss, residual


def loss_and_gradient(
    weights: np.ndarray,
    terms: Sequence[Blocks | _Kept],
    positives: sparse.csr_array,
    excluded: Sequence[Sequence[int]],
    rows: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Return the mean over the rows of the loss of Σ weight · term, and its gradient by the weights.

    Items that are `excluded` for a row have no probability. The gradient for a term is the sum of residual ⊙ term.

    Shape: weights (terms,); terms, positives (B, C); rows: indices of conversations.
    """
    total, gradient = 0.0, np.zeros(len(terms))
    for part in row_blocks(len(rows), positives.shape[1]):
        block = rows[part]
        values = [term.block(block) for term in terms]
        scores = torch.zeros((len(block), positives.shape[1]), device=values[0][0].device)
        for weight, term in zip(weights.tolist(), values, strict=True):
            if isinstance(term, tuple):
                scores.view(-1).index_add_(0, *term, alpha=weight)
            else:
                scores.add_(term, alpha=weight)
        places = np.repeat(np.arange(len(block)), [len(excluded[row]) for row in block])
        scores[places, [item for row in block for item in excluded[row]]] = -torch.inf
        loss, residual = multinomial_residual(scores, positives[block])
        total += loss.item()
        flat = residual.view(-1)
        sums = (flat[term[0]] @ term[1] if isinstance(term, tuple) else torch.sum(residual * term) for term in values)
        gradient += [each.item() for each in sums]
    return total / len(rows), gradient / len(rows)


class _Pool(NamedTuple):
    """The best items of each term for some rows: a list of few items is almost surely made of them.

    Shape: values (rows, items, terms); closed (rows, items), -inf where an item may not be listed, or stands twice;
    gains (rows, items), of an item over the best DCG of the row.
    """

    values: torch.Tensor
    closed: torch.Tensor
    gains: torch.Tensor
    size: int

    @classmethod
    def of(
        cls,
        terms: Sequence[Blocks],
        positives: sparse.csr_array,
        excluded: Sequence[Sequence[int]],
        rows: np.ndarray,
        size: int,
    ) -> "_Pool":
        """Return the pool of the rows, each of which has a positive, for lists of `size` items."""
        parts = []
        ideal = np.cumsum(_discounts(size).numpy())
        for part in row_blocks(len(rows), terms[0].shape[1]):
            block = rows[part]
            scores = [term.block(block).cpu() for term in terms]
            seen = torch.zeros_like(scores[0])
            for place, row in enumerate(block.tolist()):
                seen[place, list(excluded[row])] = -torch.inf
            number = min(_BEST, seen.shape[1])
            items = torch.cat([(value + seen).topk(number, dim=1).indices for value in scores], dim=1).sort(dim=1)[0]
            twice = torch.zeros(items.shape)
            twice[:, 1:][items[:, 1:] == items[:, :-1]] = -torch.inf
            liked = torch.from_numpy((positives[block].toarray() > 0).astype(np.float32))
            best = torch.from_numpy(ideal[np.minimum(liked.sum(dim=1).int().numpy(), size) - 1])
            gathered = torch.stack([value.gather(1, items) for value in scores], dim=2)
            parts.append((gathered, seen.gather(1, items) + twice, liked.gather(1, items) / best[:, None]))
        values, closed, gains = (torch.cat(part) for part in zip(*parts, strict=True))
        return cls(values, closed, gains, size)

    def ndcgs(self, weights: np.ndarray) -> torch.Tensor:
        """Return the NDCG of each row's list. Shape: (rows,)."""
        scores = self.values @ torch.from_numpy(weights).float() + self.closed
        top = scores.topk(min(self.size, scores.shape[1]), dim=1).indices
        return (self.gains.gather(1, top) * _discounts(top.shape[1])).sum(dim=1)

    def ndcg(self, weights: np.ndarray) -> float:
        """Return the mean NDCG of the rows' lists."""
        return float(self.ndcgs(weights).mean())

    def climb(self, weights: np.ndarray) -> np.ndarray:
        """Return weights of a higher NDCG, changed one at a time by the factors of `_STEPS` while that helps."""
        best, reached = weights.copy(), self.ndcg(weights)
        before = -1.0
        while reached - before > _LEAST_GAIN:
            before = reached
            for place, factor in product(range(len(best)), _STEPS):
                tried = best.copy()
                tried[place] = (tried[place] or _FIRST) * factor
                if (ndcg := self.ndcg(tried)) > reached:
                    best, reached = tried, ndcg
        return best


def _discounts(size: int) -> torch.Tensor:
    return 1 / torch.log2(torch.arange(size) + 2.0)


def _most_likely(
    terms: Sequence[Blocks],
    start: np.ndarray,
    positives: sparse.csr_array,
    excluded: Sequence[Sequence[int]],
    rows: np.ndarray,
) -> np.ndarray:
    """Return the weights, none negative, of the highest likelihood: a convex problem, solved by L-BFGS-B."""
    whole = 4 * len(rows) * positives.shape[1] * len(terms) <= _KEPT
    kept = [_Kept(term, whole) for term in terms]

    def objective(weights: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = loss_and_gradient(weights, kept, positives, excluded, rows)
        return loss + _PENALTY * float(weights @ weights), gradient + 2 * _PENALTY * weights

    return minimize(objective, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(terms)).x


def _open(positives: sparse.csr_array, excluded: Sequence[Sequence[int]]) -> sparse.csr_array:
    """Return the positives that are not excluded."""
    left = positives.tocsr(copy=True)
    for row, items in enumerate(excluded):
        own = slice(left.indptr[row], left.indptr[row + 1])
        left.data[own][np.isin(left.indices[own], items)] = 0
    left.eliminate_zeros()
    return left


def fit_weights(
    terms: Mapping[str, Blocks],
    start: Mapping[str, float],
    positives: sparse.csr_array,
    excluded: Sequence[Sequence[int]],
    rows: np.ndarray,
    size: int,
) -> Weights:
    """Return the weights, none negative, that give lists of `size` items the best NDCG on some rows.

    Rows without positives, and positives that are excluded, say nothing. Without any, or where no term is of use, the
    weights are those of `start`, which has 0 for the terms that it lacks.

    Shape: terms, positives (B, C); rows: indices of conversations.
    """
    positives = _open(positives, excluded)
    rows = rows[np.diff(positives.indptr)[rows] > 0]
    first, blocks = np.array([start.get(name, 0.0) for name in terms]), list(terms.values())
    unfitted = Weights(dict(zip(terms, first.tolist(), strict=True)), None, None)
    if not len(rows):
        return unfitted
    pool = _Pool.of(blocks, positives, excluded, rows, size)
    weights = pool.climb(_most_likely(blocks, first, positives, excluded, rows))
    (scale,) = _most_likely([WeightedSum(blocks, weights.tolist())], np.ones(1), positives, excluded, rows)
    if not scale or not weights.any():
        return unfitted
    values = dict(zip(terms, (weights * scale).tolist(), strict=True))
    ndcg, before = pool.ndcg(weights), pool.ndcg(first)
    shown = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
    logger.info("weights fitted on %d prompts: %s; NDCG %.4f, before %.4f", len(rows), shown, ndcg, before)
    return Weights(values, ndcg, before)


def fit_pays(
    terms: Mapping[str, Blocks],
    start: Mapping[str, float],
    positives: sparse.csr_array,
    excluded: Sequence[Sequence[int]],
    people: np.ndarray,
    size: int,
) -> bool:
    """Return whether `fit_weights` on one half of the people gives the other half better lists than `start` does.

    Better is a mean gain of NDCG, over both halves, above its standard error. Shape: people (B,), numbers.
    """
    positives = _open(positives, excluded)
    has_liked, is_first = np.diff(positives.indptr) > 0, people % 2 == 0
    first, gains = np.array([start.get(name, 0.0) for name in terms]), [torch.zeros(0)]
    for half in (is_first, ~is_first):
        rows, others = np.flatnonzero(half & has_liked), np.flatnonzero(~half & has_liked)
        if len(rows) and len(others):
            found = fit_weights(terms, start, positives, excluded, others, size).values
            pool = _Pool.of(list(terms.values()), positives, excluded, rows, size)
            gains.append(pool.ndcgs(np.array(list(found.values()))) - pool.ndcgs(first))
    gain = torch.cat(gains).numpy()
    if len(gain):
        logger.info("weights fitted on other people: NDCG %+.4f, %d prompts", gain.mean(), len(gain))
    return len(gain) > 0 and bool(gain.mean() > gain.std() / np.sqrt(len(gain)))
