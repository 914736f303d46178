"""Text embedders: rows of unit length, so that a product of two is their cosine."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer


class Embedder(Protocol):
    """Anything that turns texts into unit vectors."""

    def embed(self, texts: Sequence[str]) -> Any:
        """Return one unit row a text, dense or sparse. Shape: (len(texts), D)."""


class TfidfEmbedder:
    """TF-IDF over words and word pairs, fitted on the catalog's texts; needs no model."""

    def __init__(self, catalog_texts: Sequence[str]):
        self._vectorizer = TfidfVectorizer(
            ngram_range=(1, 2), sublinear_tf=True, stop_words="english", token_pattern=r"(?u)\b\w[\w-]+\b"
        )
        self._vectorizer.fit(catalog_texts)

    def embed(self, texts: Sequence[str]) -> sparse.csr_matrix:
        return self._vectorizer.transform(texts)


class SentenceEmbedder:
    """A sentence-transformers model by name or path."""

    def __init__(self, name: str, device: str | None = None):
        # An optional extra: only those who name such a model need it installed.
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415

        self._model = SentenceTransformer(name, device=device)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def make_embedder(name: str, catalog_texts: Sequence[str], device: str | None = None) -> Embedder:
    """Return the embedder of this name: `tfidf`, else a sentence-transformers model."""
    return TfidfEmbedder(catalog_texts) if name == "tfidf" else SentenceEmbedder(name, device)


def dense(matrix: Any) -> np.ndarray:
    """Return a dense array of a dense or sparse product."""
    return matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)
