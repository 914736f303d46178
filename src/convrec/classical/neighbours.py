"""Neighbour voting: likes of the most similar training conversations, for demonstrations and baselines."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import bdtrc

from convrec.classical.embedding import Embedder
from convrec.classical.scores import Matrix
from convrec.classical.told import Told, words_of
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.data.row_files import chosen_rows

logger = logging.getLogger(__name__)

_BLOCK = 256  # prompts per block, whose similarities to all training conversations are in memory
_FEWEST_LIKERS = 3  # people that are counted aloud: fewer say too much about each of them
_FALSE_DISCOVERIES = 0.05  # share of the items whose likers are told though as many would like them by chance


class Nearest(NamedTuple):
    """The nearest training conversations of each prompt, the nearest first, and what all of training liked.

    Shape: places and cosines (B, neighbours), liked (conversations, C).
    """

    places: np.ndarray
    cosines: np.ndarray
    liked: sparse.csr_array

    def votes(self, part: slice, neighbours: int, power: float = 1.0) -> np.ndarray:
        """Return each item's votes: the cosines of the first so many conversations that liked it. Shape: (B, C).

        With `power` a cosine, if it is positive, counts as that power of it.
        """
        places, cosines = self.places[part, :neighbours], self.cosines[part, :neighbours]
        if power != 1:
            cosines = np.maximum(cosines, 0) ** np.float32(power)
        starts = np.arange(len(places) + 1) * places.shape[1]
        shape = (len(places), self.liked.shape[0])
        return (sparse.csr_array((cosines.ravel(), places.ravel(), starts), shape=shape) @ self.liked).toarray()


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Neighbour voting as in NBCRS (Manzoor and Jannach, Information Systems, 2022).

    The conversations of the highest cosine of their embeddings vote for the items that they liked, each with its
    cosine.
    """

    embedder: Embedder
    vectors: Matrix  # (D, conversations)
    liked: sparse.csr_array  # (conversations, C), how often
    people: np.ndarray  # (conversations,), int64, see `person_key`

    @classmethod
    def fit(
        cls, train: Sequence[Row] | Told, catalog: Catalog, embedder: Callable[[Sequence[str]], Embedder]
    ) -> "Neighbours":
        """Return the neighbours of these rows; `embedder` makes an embedder from their conversations.

        Of more than `told.MOST_CONVERSATIONS`, only the newest vote.
        """
        told = Told.of(train, catalog).recent()
        first, conversation = told.distinct()
        texts = [words_of(row) for row in chosen_rows(told.rows, first)]
        fitted = embedder(texts)
        vectors: Any = fitted.embed_conversations(texts)
        vectors = vectors.T.tocsr() if sparse.issparse(vectors) else vectors.T
        cells = told.liked.tocoo()
        places = conversation[cells.coords[0]], cells.coords[1]
        liked = sparse.csr_array((cells.data.astype(np.float64), places), shape=(len(first), len(catalog)))
        return cls(fitted, vectors, liked, told.people[first])

    def embed(self, prompts: Sequence[Row]) -> Matrix:
        """Return the vectors of prompts. Shape: (B, D)."""
        return self.embedder.embed_conversations([words_of(row) for row in prompts])

    def nearest(self, prompts: Sequence[Row], number: int) -> Nearest:
        """Return the nearest `number` training conversations of each prompt, all where there are fewer."""
        number = min(number, self.liked.shape[0])
        places = np.empty((len(prompts), number), dtype=np.int64)
        cosines = np.empty((len(prompts), number), dtype=np.float32)
        for start in range(0, len(prompts), _BLOCK):
            block = prompts[start : start + _BLOCK]
            every = _cosines(self.embed(block), self.vectors)
            last = np.partition(every, -number, axis=1)[:, [-number]]
            is_last, is_nearer = every == last, every > last
            room = number - is_nearer.sum(axis=1, keepdims=True)  # equal cosines: the earlier conversation
            best = (is_nearer | is_last & (np.cumsum(is_last, axis=1) <= room)).nonzero()[1].reshape(-1, number)
            values = np.take_along_axis(every, best, axis=1)
            order = np.argsort(-values, axis=1, kind="stable")
            part = slice(start, start + len(block))
            places[part], cosines[part] = (np.take_along_axis(a, order, axis=1) for a in (best, values))
            if len(prompts) > _BLOCK and (start % (16 * _BLOCK) == 0 or start + len(block) == len(prompts)):
                logger.info("neighbours: %d of %d prompts", start + len(block), len(prompts))
        return Nearest(places, cosines, self.liked)

    def likers(self, prompts: Sequence[Row], number: int) -> list[dict[int, int]]:
        """Return, for each prompt, how many people of its nearest `number` conversations liked an item, by item.

        A conversation that shares nothing with the prompt is not near. A person counts once. Left out are items that
        fewer than three of them liked, and those that as many people might like by chance, were they drawn at random:
        by the binomial test, at a false discovery rate of 5 % over the catalog (Benjamini and Hochberg, 1995).
        """
        nearest, found = self.nearest(prompts, number), list[dict[int, int]]()
        for places, cosines in zip(nearest.places, nearest.cosines, strict=True):
            near = places[cosines > 0]
            num_people, counts = _people_of(self.people[near], self.liked[near])
            chances = bdtrc(counts - 1, num_people, self._liker_shares)
            ranked = np.sort(chances)
            is_rare = ranked <= _FALSE_DISCOVERIES * np.arange(1, len(ranked) + 1) / len(ranked)
            items = np.flatnonzero((counts >= _FEWEST_LIKERS) & (chances <= ranked[is_rare].max(initial=-1)))
            found.append(dict(zip(items.tolist(), counts[items].tolist(), strict=True)))
        return found

    @cached_property
    def _liker_shares(self) -> np.ndarray:
        """The share of all people that liked each item. Shape: (C,)."""
        num_people, counts = _people_of(self.people, self.liked)
        return counts / num_people


def _people_of(people: np.ndarray, liked: sparse.csr_array) -> tuple[int, np.ndarray]:
    """Return how many people said some conversations, and how many of them liked each item. Shape: (C,)."""
    distinct, numbers = np.unique(people, return_inverse=True)
    num_items = liked.shape[1]
    cells = np.repeat(numbers, np.diff(liked.indptr)) * num_items + liked.indices
    return len(distinct), np.bincount(np.unique(cells) % num_items, minlength=num_items)


def _cosines(queries: Any, vectors: Any) -> np.ndarray:
    """Return the product of vectors (B, D) and (D, n): of sparse ones row by row, in half of SciPy's time."""
    if not sparse.issparse(queries):
        return product(queries, vectors)
    found = np.empty((queries.shape[0], vectors.shape[1]), dtype=np.result_type(queries.dtype, vectors.dtype))
    for row, (start, end) in enumerate(pairwise(queries.indptr)):
        found[row] = vectors[queries.indices[start:end]].T @ queries.data[start:end]
    return found


def product(left: Any, right: Any) -> np.ndarray:
    """Return the product of two matrices, dense or sparse."""
    found = left @ right
    return found.toarray() if sparse.issparse(found) else found
