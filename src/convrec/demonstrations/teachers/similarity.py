"""A teacher for real data without a language model."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from convrec.classical.embedding import Embedder
from convrec.classical.neighbours import product
from convrec.data.catalog import Catalog
from convrec.data.conversations import named_titles, transcript
from convrec.demonstrations.teachers import Row, Setting, Teacher


def make(setting: Setting) -> Teacher:
    return SimilarityTeacher(setting.catalog)


class SimilarityTeacher(Teacher):
    """Lists the items that are most similar to the conversation."""

    def __init__(self, catalog: Catalog):
        self._catalog = catalog

    def prepare(self, embedder: Embedder) -> None:
        self._embedder = embedder
        vectors: Any = embedder.embed_items([item.text() for item in self._catalog.items])
        self._vectors = vectors
        self._transposed = vectors.T.tocsr() if sparse.issparse(vectors) else vectors.T

    def _similarities(self, rows: Sequence[Row]) -> Iterator[np.ndarray]:
        """Yield each row's mean cosine with the items mentioned, plus that with the words. Shape: (C,)."""
        if not rows:
            return
        conversations = self._embedder.embed_conversations([transcript(row["messages"]) for row in rows])
        for place, row in enumerate(rows):
            words = product(conversations[[place]], self._transposed)[0]
            mentioned = [i for title in named_titles(row) for i in self._catalog.indices_of_title(title)]
            yield words + product(self._vectors[mentioned], self._transposed).mean(axis=0) if mentioned else words

    def recommend(self, rows: Sequence[Row], list_length: int) -> list[str]:
        answers = []
        for row, similarity in zip(rows, self._similarities(rows), strict=True):
            order = np.argsort(-similarity, kind="stable")
            best = self._catalog.first_unseen(order, row["seen_titles"], list_length)
            answers.append("\n".join(f"{number}. {item}" for number, item in enumerate(best, start=1)))
        return answers

    def judge(self, rows: Sequence[Row], candidates: np.ndarray) -> np.ndarray:
        ratings = np.empty(candidates.shape, dtype=np.float32)
        for similarity, columns, rated in zip(self._similarities(rows), candidates, ratings, strict=True):
            edges = np.quantile(similarity, [0.5, 0.8, 0.95, 0.99])
            rated[:] = np.searchsorted(edges, similarity[columns], side="right") - 2
        return ratings
