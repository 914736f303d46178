"""Scores of conversations for catalog items, computed in blocks, so no matrix of conversations x items is built."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from scipy import sparse

BLOCK = 512  # conversations scored at once, at most
_GROUP = 128  # columns whose maximum is taken first
_FIRST = 4096  # columns in which equal scores are looked for before all others
_CELLS = 4_000_000  # scores in memory at a time: 16 MB, of 512 conversations and up to 7,812 items

Matrix: TypeAlias = np.ndarray | sparse.csr_array


class Mixture(NamedTuple):
    """A sum of given vectors for each conversation, weights · vectors. Shape: (B, T), sparse, and (T, D)."""

    weights: sparse.csr_array
    vectors: Matrix


def row_blocks(number: int, num_items: int, most: int = BLOCK) -> Iterator[slice]:
    """Yield the places of conversations in order, as many at a time as the scores of all items leave room for."""
    size = max(1, min(most, _CELLS // num_items))
    return (slice(start, min(start + size, number)) for start in range(0, number, size))


class Blocks(ABC):
    """Scores of which only blocks of rows exist at a time. Shape: (B, C), float32."""

    shape: tuple[int, int]

    @abstractmethod
    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        """Return the scores of some conversations, which the caller may change. Shape: (rows, C), float32."""

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield all conversations in order, some at a time (`row_blocks`), with their scores."""
        for rows in row_blocks(*self.shape):
            yield rows, self.block(rows)


class Scores(Blocks):
    """s = (queries + mixture) · vectorsᵀ + bonus.

    Shape: queries (B, D) and vectors (C, D), all vectors dense or all sparse; bonus (B, C), sparse. Blocks are float32,
    on `device`.
    """

    def __init__(
        self,
        queries: Matrix,
        vectors: Matrix,
        bonus: sparse.csr_array,
        mixture: Mixture | None = None,
        device: str = "cpu",
    ):
        self.shape = (queries.shape[0], vectors.shape[0])
        self._queries, self._mixture, self._bonus, self._device = queries, mixture, bonus, device
        self._vectors = vectors
        if isinstance(vectors, np.ndarray):
            self._transposed: Any = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device).T
        else:
            self._transposed = vectors.T.tocsr()

    def plus(self, bonus: sparse.csr_array) -> "Scores":
        """Return these scores with a further bonus, on the same queries and vectors."""
        return Scores(self._queries, self._vectors, (self._bonus + bonus).tocsr(), self._mixture, self._device)

    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        queries, bonus = self._queries[rows], self._bonus[rows]
        if self._mixture is not None:
            queries = queries + self._mixture.weights[rows] @ self._mixture.vectors
        if sparse.issparse(queries):
            product = torch.from_numpy((queries @ self._transposed).toarray().astype(np.float32)).to(self._device)
        else:
            product = torch.from_numpy(np.ascontiguousarray(queries, dtype=np.float32)).to(self._device)
            product = product @ self._transposed
        positions, values = flat_entries(bonus)
        product.view(-1)[positions.to(self._device)] += values.to(self._device)
        return product


def sparse_scores(values: sparse.csr_array, device: str = "cpu") -> Scores:
    """Return the scores that a sparse matrix holds. Shape: values (B, C)."""
    rows, columns = values.shape
    return Scores(np.zeros((rows, 0), np.float32), np.zeros((columns, 0), np.float32), values, device=device)


class WeightedSum(Blocks):
    """The sum of some scores, each times its weight; those of weight 0 are never computed."""

    def __init__(self, terms: Sequence[Blocks], weights: Sequence[float]):
        self.shape = terms[0].shape
        weighted = [(term, weight) for term, weight in zip(terms, weights, strict=True) if weight]
        self._terms = weighted or [(terms[0], 0.0)]

    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        (first, weight), *others = self._terms
        total = first.block(rows).mul_(weight)
        for term, weight in others:
            total.add_(term.block(rows), alpha=weight)
        return total


class Subset(Blocks):
    """Some rows of other scores."""

    def __init__(self, scores: Blocks, rows: np.ndarray):
        self.shape = (len(rows), scores.shape[1])
        self._scores, self._rows = scores, rows

    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        return self._scores.block(self._rows[rows])


class Scattered(Blocks):
    """Rows of several scores, those of each at their places in the whole."""

    def __init__(self, scores: Sequence[Blocks], places: Sequence[np.ndarray]):
        number = sum(map(len, places))
        self.shape, self._scores = (number, scores[0].shape[1]), list(scores)
        self._of, self._row = np.empty((2, number), dtype=np.int64)
        for place, rows in enumerate(places):
            self._of[rows], self._row[rows] = place, np.arange(len(rows))

    def block(self, rows: Sequence[int] | np.ndarray | slice) -> torch.Tensor:
        of, own = self._of[rows], self._row[rows]
        found = torch.empty((len(of), self.shape[1]))
        for number in np.unique(of):
            block = self._scores[number].block(own[of == number])
            found = found.to(block.device)
            found[torch.from_numpy(of == number).to(block.device)] = block
        return found


def flat_entries(matrix: sparse.csr_array) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the entries of a sparse matrix stand in its flattened form, each place once, and their values.

    Entries of one place are summed, so that either may index a dense matrix. Shape: two (entries,); values float32.
    """
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    positions = rows * matrix.shape[1] + matrix.indices
    return torch.from_numpy(positions), torch.from_numpy(matrix.data.astype(np.float32))


def largest(block: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `block.topk(size)` of each row, values and columns; which of equal values it takes is not defined.

    They are in the groups of columns that have the largest maxima, so only those of wide rows are compared in full.
    """
    number, width = block.shape
    whole = width // _GROUP * _GROUP
    if 2 * size * _GROUP > whole:
        return block.topk(size, dim=1)
    groups = block[:, :whole].unflatten(1, (-1, _GROUP)).amax(dim=2).topk(size, dim=1).indices
    columns = (groups[:, :, None] * _GROUP + torch.arange(_GROUP, device=block.device)).flatten(1)
    columns = torch.cat((columns, torch.arange(whole, width, device=block.device).expand(number, -1)), dim=1)
    values, places = block.gather(1, columns).topk(size, dim=1)
    return values, columns.gather(1, places)


def best_columns(block: torch.Tensor, size: int, order: torch.Tensor | None = None) -> torch.Tensor:
    """Return each row's best columns, best first, ties to the earlier one in `order` (by default, the lower one).

    Shape: (rows, size); order (C,).
    """
    number = block.shape[1]
    order = torch.arange(number, device=block.device) if order is None else order
    values, columns = largest(block, min(size + 1, number))
    tied = (values[:, size:] == values[:, size - 1 : size]).any(dim=1).nonzero().ravel()
    values, columns = values[:, :size], columns[:, :size]
    if len(tied):
        last = values[tied, -1:]
        is_last = values[tied] == last
        room = is_last.sum(dim=1, keepdim=True)
        equal = block[tied[:, None], order[:_FIRST]] == last
        if (equal.sum(dim=1, keepdim=True) < room).any():
            equal = block[tied][:, order] == last
        own = columns[tied]
        own[is_last] = order[(equal & (equal.cumsum(dim=1) <= room)).nonzero()[:, 1]]
        columns[tied] = own
    rank = torch.empty_like(order)
    rank[order] = torch.arange(number, device=block.device)
    columns = order[rank[columns].sort(dim=1).values]
    best = block.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    return columns.gather(1, best)


def top_items(
    scores: Blocks,
    size: int,
    excluded: Sequence[Sequence[int]],
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each conversation's best items, best first, and their scores; ties go to the lower index.

    `excluded` lists the items that may not enter (those seen). With `weight` and `bias` the scores are w ⊙ s + b.
    Places that cannot be filled hold index -1 and score -inf.

    Shape: (B, size), int32 and float32; weight, bias (C,).
    """
    size = min(size, scores.shape[1])
    top = np.empty((scores.shape[0], size), dtype=np.int32)
    values = np.empty((scores.shape[0], size), dtype=np.float32)
    for rows, block in scores.blocks():
        if weight is not None and bias is not None:
            block.mul_(torch.from_numpy(weight).to(block)).add_(torch.from_numpy(bias).to(block))
        for row, indices in enumerate(excluded[rows]):
            if indices:
                block[row, list(indices)] = -torch.inf
        columns = best_columns(block, size)
        values[rows] = block.gather(1, columns).cpu().numpy()
        top[rows] = columns.cpu().numpy()
    top[np.isneginf(values)] = -1
    return top, values
