"""Text embedders: rows of unit length, so that a product of two is their cosine."""

import hashlib
import logging
import re
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from convrec.classical.scores import Matrix
from convrec.data.unspaced import ngrams, without_runs
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

_PART = 2048  # texts embedded between two lines of progress, and kept together


class Embedder(Protocol):
    """Anything that turns texts into unit vectors; items and conversations may be encoded differently."""

    def embed_items(self, texts: Sequence[str]) -> Matrix:
        """Return one unit row an item's text, dense or sparse. Shape: (len(texts), D), float32."""

    def embed_conversations(self, texts: Sequence[str]) -> Matrix:
        """Return one unit row a conversation, likewise."""


_words_and_pairs: Callable[[str], list[str]] = TfidfVectorizer(
    ngram_range=(1, 2), stop_words="english", token_pattern=r"(?u)\b\w[\w-]+\b"
).build_analyzer()
_WORD_OR_SIGN = re.compile(r"\w+|[^\w\s]")


def _terms(text: str) -> list[str]:
    """Return the terms of a text: words and word pairs without stop words; n-grams in scripts without spaces."""
    return [*_words_and_pairs(without_runs(text)), *ngrams(text)]


def _every_term(text: str) -> list[str]:
    """Return each word of a text, stop words too, and each sign."""
    return _WORD_OR_SIGN.findall(text.lower())


class TfidfEmbedder:
    """TF-IDF over the terms of texts (see `_terms`), fitted on the catalog's; needs no model.

    If none of the catalog's texts has a term, as with titles that are stop words or emoji alone, words and signs count.
    """

    def __init__(self, catalog_texts: Sequence[str]):
        analyzer = _terms if any(map(_terms, catalog_texts)) else _every_term
        self._vectorizer = TfidfVectorizer(analyzer=analyzer, sublinear_tf=True, dtype=np.float32)
        self._vectorizer.fit(catalog_texts)

    def embed_items(self, texts: Sequence[str]) -> sparse.csr_array:
        return sparse.csr_array(self._vectorizer.transform(texts))

    def embed_conversations(self, texts: Sequence[str]) -> sparse.csr_array:
        return self.embed_items(texts)


class SentenceEmbedder:
    """A sentence-transformers model by name or path. Items' vectors are kept in `store`: none is computed twice.

    Items are encoded as documents and conversations as queries, which differs for models with prompts for the two.
    """

    def __init__(
        self,
        name: str,
        revision: str | None = None,
        trust_remote_code: bool = False,
        device: str | None = None,
        store: Path | None = None,
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
        self._vectors = None if store is None else VectorStore(store, _identity(name, revision))

    def embed_items(self, texts: Sequence[str]) -> np.ndarray:
        if self._vectors is None:
            return self._encode(texts, "items", self._model.encode_document)
        known = self._vectors.get(texts)
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            logger.info("embedding %d new items, %d are known", len(new), len(set(texts)) - len(new))
        for start in range(0, len(new), _PART):
            part = new[start : start + _PART]
            vectors = self._encode(part, "items", self._model.encode_document)
            self._vectors.put(part, vectors)
            known |= dict(zip(part, vectors, strict=True))
        return np.stack([known[text] for text in texts])

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


def make_embedder(
    texts: Sequence[str],
    name: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str | None = None,
    store: Path | None = None,
) -> Embedder:
    """Return the embedder of this name: TF-IDF fitted on the texts, or a sentence-transformers model."""
    if name == "tfidf":
        return TfidfEmbedder(texts)
    return SentenceEmbedder(name, revision, trust_remote_code, device, store)


def _identity(name: str, revision: str | None) -> str:
    """Return an identity of the model: its name and revision, or a digest of a folder's files."""
    folder = Path(name)
    if not folder.is_dir():
        return f"{name}@{revision}"
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


class VectorStore:
    """The vectors of one model by text, in an SQLite file that several models share."""

    def __init__(self, path: Path, model: str):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._model = model
        self._database = sqlite3.connect(path, timeout=60)
        try:
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID"
            )
        except sqlite3.Error as error:
            raise InputError(
                f"{path}: cannot be used as the database of vectors ({error}); remove it: it will be created again"
            ) from None

    def _key(self, text: str) -> bytes:
        return hashlib.sha256(f"{self._model}\0{text}".encode()).digest()

    def get(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the vectors that are known, by text."""
        found = {}
        for text in dict.fromkeys(texts):
            row = self._database.execute("SELECT vector FROM vectors WHERE key = ?", (self._key(text),)).fetchone()
            if row is not None:
                found[text] = np.frombuffer(row[0], dtype="<f4")
        return found

    def put(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Keep the vectors of some texts, all of them or none."""
        rows = [(self._key(text), vector.astype("<f4").tobytes()) for text, vector in zip(texts, vectors, strict=True)]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?)", rows)
