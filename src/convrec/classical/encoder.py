"""The encoder: from the words of a conversation and the items that it names to what the person likes, in closed form.

Ridge regression: W = (XᵀX + λI)⁻¹ XᵀY, for inputs X and likes Y of the training conversations, those of a person with
the weight of one. What one person said and liked is left out exactly by the Woodbury identity, so that training prompts
are scored as held-out ones are.
"""

from collections.abc import Sequence

import numpy as np
from scipy import linalg, sparse

from convrec.classical.scores import Matrix

_REGULARIZATION = 10.0
_MOST_WORDS, _MOST_NAMED = 1500, 500  # inputs of each kind, the most frequent ones
_MOST_ITEMS = 10_000  # the most liked ones; those of others are 0
_NAMED = 0.3  # length of the named items' part of an input; that of the words has 1
_CONSTANT = 0.5


class Encoder:
    """The regression of n conversations.

    Shape: vectors (D, n), of which `used` (D,) are inputs; named (n, 2C); liked (n, C); people (n,).
    """

    def __init__(
        self, vectors: Matrix, used: np.ndarray, named: sparse.csr_array, liked: sparse.csr_array, people: np.ndarray
    ):
        words = sparse.csr_array(vectors)
        self._words = _most_frequent(np.diff(words.indptr) * used, _MOST_WORDS)
        self._named = _most_frequent(np.bincount(named.indices, minlength=named.shape[1]), _MOST_NAMED)
        order = np.argsort(people, kind="stable")
        found, starts, counts = np.unique(people[order], return_index=True, return_counts=True)
        self._own = dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))
        roots = sparse.diags_array(1 / np.sqrt(counts[np.searchsorted(found, people)]))
        self._inputs = (roots @ self._inputs_of(words.T.tocsr(), named)).astype(np.float32).tocsr()
        self._items, self._num_items = _most_frequent(liked.sum(axis=0), _MOST_ITEMS), liked.shape[1]
        self._liked = (roots @ (liked[:, self._items] > 0)).astype(np.float32).tocsr()
        gram = (self._inputs.T @ self._inputs).toarray().astype(np.float64)
        gram[np.diag_indices_from(gram)] += _REGULARIZATION
        inverse = linalg.inv(gram, overwrite_a=True, check_finite=False, assume_a="pos")
        self._inverse = inverse.astype(np.float32, order="C")  # which a sparse matrix multiplies without a copy
        self._weights = self._inverse @ (self._inputs.T @ self._liked).toarray()

    def _inputs_of(self, words: sparse.csr_array, named: sparse.csr_array) -> sparse.csr_array:
        constant = sparse.csr_array(np.full((words.shape[0], 1), _CONSTANT))
        parts = [_of_length(1.0, words[:, self._words]), _of_length(_NAMED, named[:, self._named]), constant]
        return sparse.hstack(parts, format="csr", dtype=np.float32)

    def scores(self, vectors: Matrix, named: sparse.csr_array, people: Sequence[int]) -> np.ndarray:
        """Return the predictions for prompts, as if the person of each had never been in training; -1 is nobody.

        Shape: vectors (B, D); named (B, 2C); people (B,); result (B, C), float32.
        """
        inputs = self._inputs_of(sparse.csr_array(vectors), named)
        found: np.ndarray = inputs @ self._weights
        places: dict[int, list[int]] = {}
        for place, person in enumerate(people):
            if person in self._own:
                places.setdefault(person, []).append(place)
        for person, asked in places.items():
            own = self._own[person]
            changes = self._inputs[own] @ self._inverse
            hat = (self._inputs[own] @ changes.T).T
            residual = self._inputs[own] @ self._weights - self._liked[own].toarray()
            left = np.linalg.solve(np.eye(len(own), dtype=np.float32) - hat, residual)
            found[asked] += (inputs[asked] @ changes.T) @ left
        scores = np.zeros((len(found), self._num_items), dtype=np.float32)
        scores[:, self._items] = found
        return scores


def _of_length(length: float, rows: sparse.csr_array) -> sparse.csr_array:
    """Return the rows scaled to a length; those of zeros stay."""
    return sparse.diags_array(length / np.maximum(np.sqrt((rows**2).sum(axis=1)), 1e-9)) @ rows


def _most_frequent(counts: np.ndarray, number: int) -> np.ndarray:
    """Return the places of the largest counts above 0, ascending."""
    order = np.argsort(-counts, kind="stable")[:number]
    return np.sort(order[counts[order] > 0])
