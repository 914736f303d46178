"""Text embedders: rows of unit length, so that a product of two is their cosine."""

import logging
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import regex  # its words have marks, as those of Hindi do
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.utils import murmurhash3_32

from convrec.classical.scores import Matrix
from convrec.data.unspaced import ngrams, without_runs
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

_PART = 2048  # texts embedded between two lines of progress


class Embedder(Protocol):
    """Anything that turns texts into unit vectors; items and conversations may be encoded differently."""

    def embed_items(self, texts: Sequence[str]) -> Matrix:
        """Return one unit row an item's text, dense or sparse. Shape: (len(texts), D), float32."""

    def embed_conversations(self, texts: Sequence[str]) -> Matrix:
        """Return one unit row a conversation, likewise."""


_words_and_pairs: Callable[[str], list[str]] = TfidfVectorizer(
    ngram_range=(1, 2), stop_words="english", token_pattern=None, tokenizer=regex.compile(r"\b\w[\w-]+\b").findall
).build_analyzer()
_WORD_OR_SIGN = regex.compile(r"\w+|[^\w\s]")


def _terms(text: str) -> list[str]:
    """Return the terms of a text: words and word pairs without stop words; n-grams in scripts without spaces."""
    return [*_words_and_pairs(without_runs(text)), *ngrams(text)]


class TfidfEmbedder:
    """TF-IDF over the terms of texts (see `_terms`), fitted on the given ones; needs no model.

    If none of these texts has a term, as with titles that are stop words or emoji alone, words and signs count. With
    `word_ngrams` = 1, word pairs do not count.
    It knows terms by their hashes, so that a saved one does not show the words of conversations.
    """

    _fitted: tuple[Sequence[str] | None, Any] = None, None  # texts and their vectors, until they are first asked for
    _known: Any = None  # the hashes of its terms, ascending

    def __init__(self, texts: Sequence[str], word_ngrams: int = 2):
        self._has_words = any(map(_terms, texts))
        self._has_pairs = word_ngrams == 2
        self._weights = TfidfTransformer(sublinear_tf=True)
        self._fitted = texts, self._weights.fit_transform(self._counts(texts))

    def _counts(self, texts: Sequence[str]) -> sparse.csr_matrix:
        """Return how often texts have each known term; those of the first texts are known."""
        said, ends = array("I"), array("q", [0])
        for text in texts:
            terms = _terms(text) if self._has_words else _WORD_OR_SIGN.findall(text.lower())
            said.extend(murmurhash3_32(term, positive=True) for term in terms if self._has_pairs or " " not in term)
            ends.append(len(said))
        hashes = np.array(said, dtype=np.uint32)
        self._known = np.unique(hashes) if self._known is None else self._known
        columns = np.searchsorted(self._known, hashes)
        is_known = self._known[np.minimum(columns, len(self._known) - 1)] == hashes
        starts = np.append(0, np.cumsum(is_known))[np.array(ends)]
        cells = np.ones(starts[-1], dtype=np.float32), columns[is_known].astype(np.int32), starts
        counts = sparse.csr_matrix(cells, shape=(len(texts), len(self._known)))
        counts.sum_duplicates()
        return counts

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `of_arrays` makes the embedder of: the hashes of its D terms, and numbers of each."""
        return {"terms": self._known, "idf": self._weights.idf_, "has_words": np.array([self._has_words])}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "TfidfEmbedder":
        """Return the embedder that `arrays` describes. Raises `ValueError` for arrays of different lengths."""
        embedder = cls.__new__(cls)
        embedder._has_words, embedder._has_pairs = bool(arrays["has_words"][0]), True  # terms it lacks do not count
        embedder._known, embedder._weights = arrays["terms"], TfidfTransformer(sublinear_tf=True)
        embedder._weights.idf_ = arrays["idf"]
        if len(arrays["idf"]) != len(arrays["terms"]) or (arrays["terms"][1:] <= arrays["terms"][:-1]).any():
            raise ValueError(f"idf length = {len(arrays['idf'])}, not that of ascending terms")
        return embedder

    def embed_items(self, texts: Sequence[str]) -> sparse.csr_array:
        (fitted, vectors), self._fitted = self._fitted, (None, None)
        return sparse.csr_array(vectors if texts is fitted else self._weights.transform(self._counts(texts)))

    def embed_conversations(self, texts: Sequence[str]) -> sparse.csr_array:
        return self.embed_items(texts)


class SentenceEmbedder:
    """A sentence-transformers model by name or path.

    Items are encoded as documents and conversations as queries, which differs for models with prompts for the two.
    """

    def __init__(
        self, name: str, revision: str | None = None, trust_remote_code: bool = False, device: str | None = None
    ):
        if not name:
            raise InputError("demonstrations.embedder.name is empty; give 'tfidf', or a sentence-transformers model")
        try:
            # An optional extra: only those who name such a model need it installed.
            from sentence_transformers import SentenceTransformer  # noqa: PLC0415

            from convrec.generation.pretrained import refusals  # noqa: PLC0415  (imports transformers: slow)
        except ImportError:
            raise InputError(
                f"demonstrations.embedder.name = {name!r} needs sentence-transformers: pip install -e '.[embedders]'"
            ) from None
        try:
            with refusals(name, "demonstrations.embedder.trust_remote_code"):
                self._model = SentenceTransformer(
                    name,
                    device=device,
                    revision=revision,
                    trust_remote_code=trust_remote_code,
                    model_kwargs={"use_safetensors": True},
                )
        except InputError as error:
            raise InputError(f"demonstrations.embedder.name = {error}") from None

    def embed_items(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, "items", self._model.encode_document)

    def embed_conversations(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode(texts, "conversations", self._model.encode_query)

    def _encode(self, texts: Sequence[str], what: str, encode) -> np.ndarray:
        parts = []
        for start in range(0, len(texts), _PART):
            part = list(texts[start : start + _PART])
            parts.append(encode(part, normalize_embeddings=True, show_progress_bar=False))
            if len(texts) > _PART:
                logger.info("embedded %d of %d %s", start + len(part), len(texts), what)
        return np.concatenate(parts).astype(np.float32, copy=False)


def make_embedder(texts: Sequence[str], name: str, word_ngrams: int = 2, **options: Any) -> Embedder:
    """Return the embedder of this name: TF-IDF fitted on the texts, or a sentence-transformers model with options."""
    return TfidfEmbedder(texts, word_ngrams) if name == "tfidf" else SentenceEmbedder(name, **options)
