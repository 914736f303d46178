"""Collaborative evidence: what people with similar conversations and similar likes liked, as scores of prompts.

Three terms, each the logarithm of a share p of the evidence, log(p + 0.001) up to a constant: the weighted sum of such
terms is a log-linear pool of distributions over the catalog. Related: CRAG (Zhu et al., WWW 2025), which retrieves
collaboratively for an LLM.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import sparse

from convrec.classical.collaborative import ItemKnn, Likes, Named
from convrec.classical.embedding import Embedder
from convrec.classical.neighbours import Neighbours
from convrec.classical.scores import BLOCK, Scores, sparse_scores
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, month_of

logger = logging.getLogger(__name__)

EVIDENCE = ("popularity", "neighbours", "item_knn")
_SCALE = 1000.0  # log(1 + 1000 p) is log(p + 0.001) up to a constant


def log_shares(values: np.ndarray, kept: int) -> sparse.csr_array:
    """Return log(1 + 1000 p) of each row's `kept` largest shares p, less that of the next one, at least 0.

    p is a value divided by the sum of its row, with negative values as 0. In a softmax, this is the same as if all
    other items had the share of that next one. Shape: (rows, C).
    """
    values = np.maximum(values, 0)
    shares = np.log1p(_SCALE * values / np.maximum(values.sum(axis=1, keepdims=True), 1e-9))
    if kept < shares.shape[1]:
        shares = np.maximum(shares - np.partition(shares, -kept - 1, axis=1)[:, [-kept - 1]], 0)
    return sparse.csr_array(shares.astype(np.float32))


class Evidence:
    """The evidence that training rows give about prompts.

    `neighbours` conversations vote for a prompt, and `kept` items of it have a score by each of votes and item-kNN.
    `embedder` makes an embedder from the training conversations.
    """

    def __init__(
        self,
        train: Sequence[Row],
        catalog: Catalog,
        embedder: Callable[[Sequence[str]], Embedder],
        *,
        neighbours: int,
        kept: int,
        device: str = "cpu",
    ):
        self._train, self._catalog, self._device = train, catalog, device
        self._number, self._kept = neighbours, kept
        self._likes = Likes.of(train, catalog)
        self._neighbours = Neighbours(train, catalog, embedder)

    def terms(self, prompts: Sequence[Row], *, without_own: bool, earlier: bool) -> dict[str, Scores]:
        """Return the scores of the prompts by `neighbours`, `item_knn` and `popularity`. Shape: (B, C) each.

        `neighbours`: the share of the votes of the most similar conversations. `item_knn`: the share of the summed
        similarities to the items that the prompt names as liked. `popularity`: how many people like an item.
        `without_own` leaves out what the prompt's person said and liked, `earlier` what is not of an earlier month.
        """
        nearest = self._neighbours.nearest(prompts, self._number, without_own=without_own, earlier=earlier)
        votes = [log_shares(nearest.votes(part, self._number), self._kept) for part in _parts(len(prompts))]
        months = np.array([month_of(row) if earlier else "" for row in prompts], dtype=str)
        order = np.argsort(months, kind="stable")
        similar, popular, own = [], [], []
        for month in np.unique(months):
            rows = [prompts[i] for i in np.flatnonzero(months == month)]
            likes = self._likes.before(month) if earlier else self._likes
            theirs = likes.own(rows) if without_own else sparse.csr_array((len(rows), likes.matrix.shape[1]))
            knn = ItemKnn(likes.matrix)
            for part in _parts(len(rows)):
                named = Named.of(rows[part], self._catalog)
                similar.append(log_shares(knn.scores(named, without=theirs[part]), self._kept))
            logger.info("item-kNN: %d prompts%s", len(rows), f" of {month}" if month else "")
            counts = likes.matrix.sum(axis=0)
            popular.append(np.log1p(counts))
            theirs.data = np.log(counts[theirs.indices] / (counts[theirs.indices] + 1)).astype(np.float32)
            own.append(theirs)
        back = np.argsort(order, kind="stable")
        of_month = np.unique(months, return_inverse=True)[1]
        chosen = np.eye(len(popular), dtype=np.float32)[of_month]
        table = np.array(popular, dtype=np.float32).T
        return {
            "neighbours": sparse_scores(sparse.vstack(votes, format="csr"), self._device),
            "item_knn": sparse_scores(sparse.vstack(similar, format="csr")[back], self._device),
            "popularity": Scores(chosen, table, sparse.vstack(own, format="csr")[back], device=self._device),
        }


def _parts(number: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, number)) for start in range(0, number, BLOCK))
