"""What people like together: item-kNN and EASE over the likes of the training split, for demonstrations and baselines.

Scores are of a prompt's items: those that its conversation names, liked and disliked told apart where the source knows.
Item-kNN can leave a person's own likes out exactly, so that training prompts are scored as held-out ones are.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, month_of, named_titles, person_key, truths
from convrec.project.machine import usable_cores

Cells = list[tuple[int, int]]
_CELLS = 4_000_000  # maximum number of similarities in memory, 4 bytes each


def _matrix(cells: Cells, num_rows: int, num_items: int) -> sparse.csr_array:
    """Return the binary matrix with ones in the cells, each counted once."""
    rows, columns = np.array(sorted(set(cells)), dtype=np.int64).reshape(-1, 2).T
    return sparse.csr_array((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=(num_rows, num_items))


def named_items(row: Row, catalog: Catalog) -> tuple[set[int], set[int]]:
    """Return the catalog items that a row's conversation names as liked, and as disliked.

    Those that are not among the `disliked_titles` count as liked.
    """
    disliked = catalog.indices_of_titles(row.get("disliked_titles") or ())
    return catalog.indices_of_titles(named_titles(row)) - disliked, disliked


class Named(NamedTuple):
    """The items that each prompt names, liked and disliked. Shape: each (B, C), binary."""

    liked: sparse.csr_array
    disliked: sparse.csr_array

    @classmethod
    def of(cls, prompts: Sequence[Row], catalog: Catalog) -> "Named":
        """Return what the prompts name (see `named_items`)."""
        liked: Cells = []
        disliked: Cells = []
        for place, row in enumerate(prompts):
            ours, others = named_items(row, catalog)
            liked += [(place, index) for index in ours]
            disliked += [(place, index) for index in others]
        return cls(*(_matrix(cells, len(prompts), len(catalog)) for cells in (liked, disliked)))

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

    `months` has the first month in which each like, an entry of the matrix, was told.
    Shape: matrix (people, C), binary, canonical; months (likes,).
    """

    matrix: sparse.csr_array
    people: dict[int, int]
    months: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[Row], catalog: Catalog) -> "Likes":
        """Return each person's likes: the ground truth of their rows and what those name as liked."""
        people: dict[int, int] = {}
        first: dict[tuple[int, int], str] = {}
        for row in rows:
            place, month = people.setdefault(person_key(row), len(people)), month_of(row)
            found = (catalog.find(truth.title, truth.year) for truth in truths(row))
            for index in {index for index in found if index is not None} | named_items(row, catalog)[0]:
                first[place, index] = min(month, first.get((place, index), month))
        months = np.array([first[cell] for cell in sorted(first)], dtype=str)
        return cls(_matrix(list(first), len(people), len(catalog)), people, months)

    def before(self, month: str) -> "Likes":
        """Return the likes that were told before a month; the people stay."""
        kept = self.months < month
        rows, columns = self.matrix.nonzero()
        cells = (np.ones(kept.sum(), dtype=np.float32), (rows[kept], columns[kept]))
        return Likes(sparse.csr_array(cells, shape=self.matrix.shape), self.people, self.months[kept])

    def own(self, prompts: Sequence[Row]) -> sparse.csr_array:
        """Return the likes of each prompt's person, none for one who is not among the people. Shape: (B, C)."""
        places = np.array([self.people.get(person_key(row), -1) for row in prompts], dtype=np.int64)
        known = np.flatnonzero(places >= 0)
        rows = sparse.csr_array(
            (np.ones(len(known), dtype=np.float32), (known, places[known])), shape=(len(prompts), len(self.people))
        )
        return (rows @ self.matrix).tocsr()


class ItemKnn:
    """Item-based nearest neighbours: the cosine of two items over the people who liked them.

    Sarwar et al., WWW 2001. With `shrinkage` h the similarity of items that n and m people liked, c of them both, is
    c / (sqrt(n m) + h), so that a few common people count less (Dacrema et al., RecSys 2019). With `inverse_frequency`
    x, a person with k likes counts k^-x instead of 1 (Breese et al., UAI 1998, weight items so).
    """

    def __init__(self, likes: sparse.csr_array, inverse_frequency: float = 0.0):
        self._exponent = -inverse_frequency
        weighted = self._weighted(likes) if inverse_frequency else likes
        self._counts = np.asarray(weighted.sum(axis=0), dtype=np.float32).ravel()
        self._together = (likes.T @ weighted).tocsr()

    def _weighted(self, likes: Any) -> Any:
        """Return people's likes times their weights. Shape: both (people, C), sparse or dense."""
        weights = np.maximum(np.asarray(likes.sum(axis=1), dtype=np.float32), 1) ** np.float32(self._exponent)
        return sparse.diags_array(weights) @ likes

    def scores(
        self,
        named: Named,
        shrinkage: float = 0.0,
        nearest: int | None = None,
        dislike_weight: float = 0.0,
        without: sparse.csr_array | None = None,
    ) -> np.ndarray:
        """Return Σ similarity to the liked named items - `dislike_weight` Σ to the disliked. Shape: (B, C), float32.

        Of each named item only the `nearest` most similar items count (and those as similar as the last of them), all
        where it is None; an item is not similar to itself. `without` holds the likes of one person a prompt, which are
        taken out of all counts before.
        """
        weights = named.weighted(dislike_weight)
        num_prompts, num_items = weights.shape
        if without is None:  # one row an item that any prompt names
            items = np.unique(weights.indices)
            chosen = weights[:, items].tocsr()
            owners = None
        else:  # one row an item of a prompt
            items, values = weights.indices, weights.data
            starts = np.arange(len(items) + 1)
            owners = np.repeat(np.arange(num_prompts), np.diff(weights.indptr))
            chosen = sparse.csr_array((values, (owners, starts[:-1])), shape=(num_prompts, len(items)))
        scores = np.zeros((num_prompts, num_items), dtype=np.float32)
        size = max(1, _CELLS // num_items)
        for start in range(0, len(items), size):
            part = slice(start, start + size)
            own = None if owners is None or without is None else without[owners[part]].toarray()
            similar = self._similarities(items[part], shrinkage, nearest, own)
            columns = chosen[:, part]
            touched = np.unique(columns.nonzero()[0])
            scores[touched] += columns[touched] @ similar
        return scores

    def _similarities(
        self, items: np.ndarray, shrinkage: float, nearest: int | None, own: np.ndarray | None
    ) -> np.ndarray:
        """Return the similarities of some items to all, those of `own` left out of the counts. Shape: (items, C)."""
        places = np.arange(len(items))
        together, counts, others = self._together[items].toarray(), self._counts[items], self._counts
        if own is not None:
            weighted = self._weighted(own) if self._exponent else own
            together -= own[places, items][:, None] * weighted
            counts, others = counts - weighted[places, items], others - weighted
        norms = np.sqrt(counts[:, None] * others) + np.float32(shrinkage)
        similar = np.divide(together, norms, out=np.zeros_like(together), where=norms > 0)
        similar[places, items] = 0
        if nearest is not None and nearest < similar.shape[1]:
            limits = np.partition(similar, -nearest, axis=1)[:, -nearest]
            similar[similar < limits[:, None]] = 0
        return similar


class Ease:
    """EASE: the linear model of each item by the others in closed form (Steck, "Embarrassingly shallow", WWW 2019).

    P = (LᵀL + λI)⁻¹ for likes L, and B = I - P diag(1 / diag P). Only the `most_items` most liked items are in it: the
    inverse takes memory and time of their square and cube. The scores of others are 0.
    """

    def __init__(self, likes: sparse.csr_array, regularization: float, most_items: int = 10_000):
        counts = np.asarray(likes.sum(axis=0)).ravel()
        order = np.argsort(-counts, kind="stable")[:most_items]
        self._items = np.sort(order[counts[order] > 0])
        self._num_items = likes.shape[1]
        active = likes[:, self._items]
        gram = (active.T @ active).toarray().astype(np.float64)
        gram[np.diag_indices_from(gram)] += regularization
        self._inverse = np.linalg.inv(gram)

    def scores(self, named: Named, dislike_weight: float = 0.0, without: sparse.csr_array | None = None) -> np.ndarray:
        """Return W B, W being 1 for liked named items and -`dislike_weight` for disliked. Shape: (B, C), float32.

        `without` holds the likes of one person a prompt. The prompt is scored as by a model that was fitted without
        them: the inverse changes by the Sherman-Morrison formula.
        """
        weights = named.weighted(dislike_weight)[:, self._items]
        scores = np.zeros((weights.shape[0], self._num_items), dtype=np.float32)
        diagonal = np.diag(self._inverse)
        size = max(1, _CELLS // max(1, len(self._items)))
        for start in range(0, len(scores), size):
            part = weights[start : start + size]
            products, norms = part @ self._inverse, diagonal
            if without is not None:
                own = without[start : start + size][:, self._items]
                changes = own @ self._inverse  # x P, and P is symmetric
                left = 1 - own.multiply(changes).sum(axis=1)
                products = products + (part.multiply(changes).sum(axis=1) / left)[:, None] * changes
                norms = diagonal + changes**2 / left[:, None]
            # w_j - (w P)_j / P_jj, which is w B, of the items in the model
            scores[start : start + size, self._items] = part.toarray() - products / norms
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
