"""What people like together: item-kNN and EASE over the likes of the training split, for demonstrations and baselines.

Scores are of a prompt's items: those that its conversation names, liked and disliked told apart where the source knows.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from convrec.classical.told import Told, item_matrix, most_frequent, named_items
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.project.machine import usable_cores

_CELLS = 4_000_000  # maximum number of similarities in memory, 4 bytes each


class Named(NamedTuple):
    """The items that each prompt names, liked and disliked. Shape: each (B, C), binary."""

    liked: sparse.csr_array
    disliked: sparse.csr_array

    @classmethod
    def of(cls, prompts: Sequence[Row], catalog: Catalog) -> "Named":
        """Return what the prompts name (see `named_items`)."""
        size, named = len(catalog), (named_items(row, catalog) for row in prompts)
        both = item_matrix(([*liked, *(size + item for item in disliked)] for liked, disliked in named), 2 * size)
        return cls(both[:, :size], both[:, size:])

    @property
    def both(self) -> sparse.csr_array:
        """The liked and the disliked items side by side. Shape: (B, 2C)."""
        return sparse.hstack([self.liked, self.disliked], format="csr")

    def part(self, rows: slice) -> "Named":
        """Return what a slice of the prompts names."""
        return Named(self.liked[rows], self.disliked[rows])

    def weighted(self, dislike_weight: float) -> sparse.csr_array:
        """Return 1 for a liked item and -`dislike_weight` for a disliked one. Shape: (B, C), float32."""
        weights = (self.liked - np.float32(dislike_weight) * self.disliked).tocsr()
        weights.eliminate_zeros()
        return weights


class Likes(NamedTuple):
    """Who liked what in the rows: a person (`person_key`) a row of the matrix.

    `months` has the first month in which each like, an entry of the matrix, was told (see `month_number`).
    Shape: matrix (people, C), binary, canonical; people (people,); months (likes,).
    """

    matrix: sparse.csr_array
    people: np.ndarray
    months: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Row] | Told, catalog: Catalog) -> "Likes":
        """Return each person's likes: the ground truth of their rows and what those name as liked."""
        told = Told.of(rows, catalog)
        persons, people = pd.factorize(told.people)
        cells = (told.liked + told.named).tocoo()
        numbers = persons[cells.coords[0]].astype(np.int64) * len(catalog) + cells.coords[1]
        order = np.lexsort((told.months[cells.coords[0]], numbers))
        likes, first = np.unique(numbers[order], return_index=True)
        starts = np.searchsorted(likes, np.arange(len(people) + 1) * len(catalog)).astype(np.int32)
        items = (likes % len(catalog)).astype(np.int32)
        matrix = sparse.csr_array((np.ones(len(likes), np.float32), items, starts), shape=(len(people), len(catalog)))
        return cls(matrix, people, told.months[cells.coords[0][order[first]]])


class ItemKnn:
    """Item-based nearest neighbours: the cosine of two items over the people who liked them.

    Sarwar et al., WWW 2001. With `shrinkage` h the similarity of items that n and m people liked, c of them both, is
    c / (sqrt(n m) + h), so that a few common people count less (Dacrema et al., RecSys 2019). With `inverse_frequency`
    x, a person with k likes counts k^-x instead of 1 (Breese et al., UAI 1998, weight items so).
    """

    def __init__(self, likes: sparse.csr_array, inverse_frequency: float = 0.0):
        sizes = np.maximum(np.asarray(likes.sum(axis=1), dtype=np.float32), 1)
        weighted = sparse.diags_array(sizes ** np.float32(-inverse_frequency)) @ likes
        self._counts = np.asarray(weighted.sum(axis=0), dtype=np.float32).ravel()
        self._together = (likes.T @ weighted).tocsr()
        self._together.sort_indices()

    def scores(
        self,
        named: Named,
        shrinkage: float = 0.0,
        nearest: int | None = None,
        dislike_weight: float = 0.0,
    ) -> np.ndarray:
        """Return Σ similarity to the liked named items - `dislike_weight` Σ to the disliked. Shape: (B, C), float32.

        Of each named item only the `nearest` most similar items count (and those as similar as the last of them), all
        where it is None; an item is not similar to itself.
        """
        weights = named.weighted(dislike_weight)
        num_prompts, num_items = weights.shape
        items, places = np.unique(weights.indices, return_inverse=True)
        chosen = sparse.csr_array((weights.data, places, weights.indptr), shape=(num_prompts, len(items)))
        scores = np.zeros((num_prompts, num_items), dtype=np.float32)
        ends = np.cumsum(np.diff(self._together.indptr)[items]) // _CELLS
        for part in np.split(np.arange(len(items)), np.flatnonzero(np.diff(ends)) + 1):
            columns = chosen[:, part].tocsr()
            touched = np.flatnonzero(np.diff(columns.indptr))
            scores[touched] += (columns[touched] @ self._similarities(items[part], shrinkage, nearest)).toarray()
        return scores

    def _similarities(self, items: np.ndarray, shrinkage: float, nearest: int | None) -> sparse.csr_array:
        """Return the similarities of some items to all. Shape: (items, C)."""
        similar, num_items = self._together[items], len(self._counts)
        sizes = np.diff(similar.indptr)
        rows, columns, values = np.repeat(np.arange(len(items)), sizes), similar.indices, similar.data
        counts, others = self._counts[items], self._counts[columns]
        norms = np.sqrt(counts[rows] * others) + np.float32(shrinkage)
        values = np.divide(values, norms, out=np.zeros_like(values), where=norms > 0)
        values[columns == items[rows]] = 0
        if nearest is not None and nearest < num_items:
            limits = np.zeros(len(items), dtype=np.float32)
            for row in np.flatnonzero(sizes > nearest):
                limits[row] = np.partition(values[similar.indptr[row] : similar.indptr[row + 1]], -nearest)[-nearest]
            values[values < limits[rows]] = 0
        similar.data = values
        similar.eliminate_zeros()
        return similar


class Ease:
    """EASE: the linear model of each item by the others in closed form (Steck, "Embarrassingly shallow", WWW 2019).

    P = (LᵀL + λI)⁻¹ for likes L, and B = I - P diag(1 / diag P). Only the `most_items` most liked items are in it: the
    inverse takes memory and time of their square and cube. The scores of others are 0. Cholesky's inverse, in place, is
    faster for each λ than an eigendecomposition of LᵀL, which serves all, and the product that makes P of it.
    """

    def __init__(self, likes: sparse.csr_array, regularization: float, most_items: int = 10_000):
        self._items = most_frequent(np.asarray(likes.sum(axis=0)).ravel(), most_items)
        self._num_items = likes.shape[1]
        active = likes[:, self._items]
        gram = (active.T @ active).astype(np.float64).toarray()
        gram[np.diag_indices_from(gram)] += regularization
        # It is symmetric, and in the order of rows a sparse matrix multiplies it without a copy.
        self._inverse = linalg.inv(gram, overwrite_a=True, check_finite=False, assume_a="pos").T

    def scores(self, named: Named, dislike_weight: float = 0.0) -> np.ndarray:
        """Return W B, W being 1 for liked named items and -`dislike_weight` for disliked. Shape: (B, C), float32."""
        weights = named.weighted(dislike_weight)[:, self._items]
        scores = np.zeros((weights.shape[0], self._num_items), dtype=np.float32)
        diagonal = np.diag(self._inverse)
        size = max(1, _CELLS // max(1, len(self._items)))
        for start in range(0, len(scores), size):
            part = weights[start : start + size]
            # w_j - (w P)_j / P_jj, which is w B, of the items in the model
            scores[start : start + size, self._items] = part.toarray() - part @ self._inverse / diagonal
        return scores


class Als:
    """Alternating least squares for implicit feedback (Hu, Koren and Volinsky, ICDM 2008), from the library `implicit`.

    A like has confidence `alpha`, every other item 1. A prompt is treated as a new user: its factors are solved from
    the items that it names as liked.
    """

    def __init__(self, likes: sparse.csr_array, factors: int, regularization: float, alpha: float, seed: int):
        from implicit.cpu.als import AlternatingLeastSquares  # noqa: PLC0415  (not in a registered model)

        with threadpool_limits(1, "blas"):  # as implicit recommends: its own threads call BLAS
            self._model = AlternatingLeastSquares(
                factors, regularization, alpha, random_state=seed, num_threads=usable_cores()
            )
            self._model.fit(sparse.csr_matrix(likes), show_progress=False)

    def scores(self, liked: sparse.csr_array) -> np.ndarray:
        """Return the dot products of the prompts' and the items' factors. Shape: liked and result (B, C), float32."""
        with threadpool_limits(1, "blas"):
            people = self._model.recalculate_user(np.arange(liked.shape[0]), sparse.csr_matrix(liked))
            return people @ self._model.item_factors.T
