"""Evidence about what people will like, as scores of prompts: likes of similar people, and the texts of the items.

Each term but popularity is the logarithm of a share p of the evidence, log(p + 0.001) up to a constant: the weighted
sum of such terms is a log-linear pool of distributions over the catalog. Related: CRAG (Zhu et al., WWW 2025), which
retrieves collaboratively for an LLM.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from scipy import sparse

from convrec.classical.collaborative import Ease, ItemKnn, Likes, Named
from convrec.classical.embedding import Embedder, TfidfEmbedder
from convrec.classical.neighbours import Neighbours, product
from convrec.classical.scores import BLOCK, Scores, largest, row_blocks, sparse_scores
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, month_of, transcript
from convrec.data.row_wishes import wishes_of
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

COLLABORATIVE = ("popularity", "neighbours", "item_knn", "ease")
EVIDENCE = (*COLLABORATIVE, "content", "words", "wishes")
_SCALE = 1000.0  # log(1 + 1000 p) is log(p + 0.001) up to a constant
_REGULARIZATION = 300.0  # of EASE
_LARGEST = 10**9  # of a number in a file


def log_shares(values: np.ndarray, kept: int) -> sparse.csr_array:
    """Return log(1 + 1000 p) of each row's `kept` largest shares p, less that of the next one, at least 0.

    p is a value divided by the sum of its row, with negative values as 0. In a softmax, this is the same as if all
    other items had the share of that next one. Shape: (rows, C).
    """
    values = np.maximum(values, 0)
    totals = np.maximum(values.sum(axis=1, keepdims=True), 1e-9)
    return above_next(values, kept, lambda best: np.log1p(_SCALE * best / totals))


def above_next(
    values: np.ndarray, kept: int, of: Callable[[np.ndarray], np.ndarray] = lambda best: best
) -> sparse.csr_array:
    """Return `of` each row's `kept` largest values, less that of the next one, at least 0. Shape: (rows, C).

    Where there is no next one, they are less the smallest. `of` never falls from a value to a larger one.
    """
    best, columns = (part.numpy() for part in largest(torch.from_numpy(values), min(kept + 1, values.shape[1])))
    best = of(best)
    gains = (best - best[:, -1:]).astype(np.float32)
    gains, columns = (np.take_along_axis(part, columns.argsort(axis=1), axis=1) for part in (gains, columns))
    is_above = gains > 0
    starts = np.append(0, np.cumsum(is_above.sum(axis=1))).astype(np.int32)
    return sparse.csr_array((gains[is_above], columns[is_above].astype(np.int32), starts), shape=values.shape)


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Raise `InputError`, which names the file and what is wrong in it, for what reading a damaged one raises."""
    try:
        yield
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, OverflowError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            value = f"{'.'.join(map(str, first['loc']))} = {first['input']!r:.80}: " if first["loc"] else ""
            reason = value + first["msg"]
        remedy = "make it again (`dvc repro --force guidance`), or use another version"
        raise InputError(f"{path}: damaged ({reason}); {remedy}") from None


class Saved(BaseModel, strict=True, allow_inf_nan=False):
    """Settings in a file, without silent conversions."""


class _Settings(Saved):
    number: int = Field(ge=1, le=_LARGEST)
    kept: int = Field(ge=1, le=_LARGEST)


@dataclass
class Evidence:
    """The evidence that training rows give about prompts: vectors of conversations and likes, no texts.

    `number` conversations vote for a prompt, and `kept` items of it have a score by each kind but popularity.
    """

    catalog: Catalog
    neighbours: Neighbours
    likes: Likes
    number: int
    kept: int
    device: str = "cpu"
    _models: dict[str, ItemKnn | Ease] = field(default_factory=dict)  # those of all months
    _texts: list[tuple[Embedder, Any]] = field(default_factory=list)  # of the items, once they are needed

    @classmethod
    def fit(
        cls,
        train: Sequence[Row],
        catalog: Catalog,
        embedder: Callable[[Sequence[str]], Embedder],
        *,
        neighbours: int,
        kept: int,
        device: str = "cpu",
    ) -> "Evidence":
        """Return the evidence of these rows; `embedder` makes an embedder from their conversations."""
        voters = Neighbours.fit(train, catalog, embedder)
        return cls(catalog, voters, Likes.of(train, catalog), neighbours, kept, device)

    def save(self, path: Path) -> None:
        """Write the evidence to a safetensors file; an embedder other than TF-IDF is not in it."""
        voters, likes = self.neighbours, self.likes
        embedder = voters.embedder.arrays() if isinstance(voters.embedder, TfidfEmbedder) else {}
        vectors = voters.vectors
        arrays = {
            "items": _keys(self.catalog),
            **embedder,
            **(_csr("vectors", vectors) if sparse.issparse(vectors) else {"vectors": np.ascontiguousarray(vectors)}),
            **_csr("liked", voters.liked),
            "voters": voters.people,
            "voted": _numbers(voters.months),
            **_csr("likes", likes.matrix),
            "people": np.array(list(likes.people), dtype=np.int64),
            "liked_in": _numbers(likes.months),
        }
        settings = {"number": self.number, "kept": self.kept}
        save_file(arrays, path, {"settings": json.dumps(settings)})

    @classmethod
    def load(
        cls, path: Path, catalog: Catalog, embedder: Callable[[], Embedder] | None = None, device: str = "cpu"
    ) -> "Evidence":
        """Return the evidence of a file; `embedder` makes the embedder that it was made with, unless that is TF-IDF.

        Likes of items that this catalog lacks are dropped. Raises `InputError` without the embedder, and for a file
        that is damaged.
        """
        with intact(path):
            arrays = load_file(path)
            with safe_open(path, "numpy") as file:
                settings = _Settings.model_validate_json((file.metadata() or {})["settings"])
            _check_values(arrays)
            liked, matrix = _matrix_of(arrays, "liked"), _matrix_of(arrays, "likes")
            vectors = arrays["vectors"] if "vectors" in arrays else _matrix_of(arrays, "vectors")
            _check_sizes(arrays, vectors, liked, matrix)
            people = {person: place for place, person in enumerate(arrays["people"].tolist())}
            months, voted = _months(arrays["liked_in"]), _months(arrays["voted"])
            made: Embedder | None = TfidfEmbedder.of_arrays(arrays) if "terms" in arrays else None
        if made is None and embedder is None:
            raise InputError(f"{path}: it needs the sentence-transformers model of demonstrations.embedder")
        with intact(path):
            made = made or embedder()  # type: ignore[misc]
            if (size := made.embed_conversations(["?"]).shape[1]) != vectors.shape[0]:
                raise ValueError(f"vectors of {vectors.shape[0]} numbers, not {size} as the embedder's")
        if not np.array_equal(arrays["items"], _keys(catalog)):
            places = {key: place for place, key in enumerate(_keys(catalog).tolist())}
            columns = np.array([places.get(key, -1) for key in arrays["items"].tolist()], dtype=np.int64)
            liked, _ = _moved(liked, np.empty(liked.nnz), columns, len(catalog))
            matrix, months = _moved(matrix, months, columns, len(catalog))
        voters = Neighbours(made, vectors, liked, arrays["voters"], voted)
        return cls(catalog, voters, Likes(matrix, people, months), settings.number, settings.kept, device)

    def terms(
        self, prompts: Sequence[Row], *, without_own: bool, earlier: bool, kinds: Sequence[str] = EVIDENCE
    ) -> dict[str, Scores]:
        """Return the scores of the prompts by each kind of evidence. Shape: (B, C) each.

        - `neighbours`: the share of the votes of the most similar conversations.
        - `item_knn`, `ease`: the share of the summed similarities to the items that the prompt names as liked.
        - `popularity`: how many people like an item.
        - `content`: the share of the cosines of an item's text with those of the items that the prompt names as liked.
        - `words`: the share of the cosines of an item's text with the words of the conversation.
        - `wishes`: how many of the conversation's wishes that are preferred, not kept, an item fits. They are read from
          its messages, unless the prompt has them as `wishes`.

        `without_own` leaves out what the prompt's person said and liked, `earlier` what is not of an earlier month.
        """
        if not prompts:
            return {kind: sparse_scores(sparse.csr_array((0, len(self.catalog)), dtype=np.float32)) for kind in kinds}
        found: dict[str, Scores] = {}
        blocks = list(row_blocks(len(prompts), len(self.catalog)))
        if "neighbours" in kinds:
            nearest = self.neighbours.nearest(prompts, self.number, without_own=without_own, earlier=earlier)
            votes = [log_shares(nearest.votes(part, self.number), self.kept) for part in blocks]
            found["neighbours"] = sparse_scores(sparse.vstack(votes, format="csr"), self.device)
        for kind, queries in self._queries(prompts, kinds).items():
            items = self._item_texts()[1]
            shares = [log_shares(product(queries[part], items), self.kept) for part in blocks]
            found[kind] = sparse_scores(sparse.vstack(shares, format="csr"), self.device)
        months = np.array([month_of(row) if earlier else "" for row in prompts], dtype=str)
        order = np.argsort(months, kind="stable")
        similar: dict[str, list[sparse.csr_array]] = {kind: [] for kind in ("item_knn", "ease") if kind in kinds}
        popular, own = [], []
        for month in np.unique(months):
            rows = [prompts[i] for i in np.flatnonzero(months == month)]
            likes = self.likes.before(month) if earlier else self.likes
            theirs = likes.own(rows) if without_own else sparse.csr_array((len(rows), likes.matrix.shape[1]))
            for kind, parts in similar.items():
                model = self._model(kind, month, likes)
                for part in row_blocks(len(rows), len(self.catalog)):
                    named = Named.of(rows[part], self.catalog)
                    scores = model.scores(named, without=theirs[part] if without_own else None)
                    parts.append(log_shares(scores, self.kept))
                if len(rows) > BLOCK:
                    logger.info("%s: %d prompts%s", kind, len(rows), f" of {month}" if month else "")
            counts = likes.matrix.sum(axis=0)
            popular.append(np.log1p(counts))
            theirs.data = np.log(counts[theirs.indices] / (counts[theirs.indices] + 1)).astype(np.float32)
            own.append(theirs)
        back = np.argsort(order, kind="stable")
        for kind, parts in similar.items():
            found[kind] = sparse_scores(sparse.vstack(parts, format="csr")[back], self.device)
        if "popularity" in kinds:
            of_month = np.unique(months, return_inverse=True)[1]
            chosen = np.eye(len(popular), dtype=np.float32)[of_month]
            table = np.array(popular, dtype=np.float32).T
            left_out = sparse.vstack(own, format="csr")[back]
            found["popularity"] = Scores(chosen, table, left_out, device=self.device)
        if "wishes" in kinds:
            found["wishes"] = self._preferred(prompts)
        return {kind: found[kind] for kind in kinds}

    def _preferred(self, prompts: Sequence[Row]) -> Scores:
        size = len(self.catalog)
        columns, cells = dict[str, tuple[int, sparse.csr_array]](), set[tuple[int, int]]()  # by the text of a wish
        for place, row in enumerate(prompts):
            for wish in wishes_of(row, self.catalog):
                is_preferred = wish.state == "preferred" or (wish.is_soft and wish.state == "kept")
                if is_preferred and wish.fits is not None:  # where a soft wish is kept, all open items fit
                    if wish.text not in columns:
                        columns[wish.text] = len(columns), sparse.csr_array(wish.fits[None].astype(np.float32))
                    cells.add((place, columns[wish.text][0]))
        fits = [own for _, own in columns.values()]
        table = sparse.vstack([sparse.csr_array((0, size), dtype=np.float32), *fits]).T.tocsr()
        at = np.array(sorted(cells), dtype=np.int64).reshape(-1, 2).T
        chosen = sparse.csr_array((np.ones(at.shape[1], np.float32), (at[0], at[1])), shape=(len(prompts), len(fits)))
        return Scores(chosen, table, sparse.csr_array((len(prompts), size)), device=self.device)

    def _item_texts(self) -> tuple[Embedder, Any]:
        """Return the embedder of items, TF-IDF of their own texts or that of conversations, and the vectors (D, C)."""
        if not self._texts:
            texts, embedder = [item.text() for item in self.catalog.items], self.neighbours.embedder
            embedder = TfidfEmbedder(texts) if isinstance(embedder, TfidfEmbedder) else embedder
            vectors = embedder.embed_items(texts).T
            self._texts.append((embedder, vectors if isinstance(vectors, np.ndarray) else vectors.tocsr()))
        return self._texts[0]

    def _queries(self, prompts: Sequence[Row], kinds: Sequence[str]) -> dict[str, Any]:
        """Return the vectors with which the texts of items are compared. Shape: (B, D) each."""
        queries: dict[str, Any] = {}
        if "content" in kinds:
            liked = Named.of(prompts, self.catalog).liked
            means = sparse.diags_array(1 / np.maximum(liked.sum(axis=1), 1)) @ liked
            queries["content"] = (self._item_texts()[1] @ means.T.tocsr()).T
        if "words" in kinds:
            texts = [transcript(row["messages"]) for row in prompts]
            queries["words"] = self._item_texts()[0].embed_conversations(texts)
        return {kind: vectors.tocsr() if sparse.issparse(vectors) else vectors for kind, vectors in queries.items()}

    def _model(self, kind: str, month: str, likes: Likes) -> ItemKnn | Ease:
        """Return the fitted model of a kind; that of all months is kept."""
        if month or kind not in self._models:
            model = ItemKnn(likes.matrix) if kind == "item_knn" else Ease(likes.matrix, _REGULARIZATION)
            if month:
                return model
            self._models[kind] = model
        return self._models[kind]


def _csr(name: str, matrix: Any) -> dict[str, np.ndarray]:
    """Return a sparse matrix as arrays under names that begin with `name`."""
    matrix = sparse.csr_array(matrix)
    shape = np.array(matrix.shape, dtype=np.int64)
    parts = {"data": matrix.data.astype(np.float32), "columns": matrix.indices, "starts": matrix.indptr}
    return {f"{name}.{part}": _compact(value) for part, value in parts.items()} | {f"{name}.shape": shape}


def _compact(values: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest type of integers that holds them all, other values unchanged."""
    if (values != np.trunc(values)).any():
        return values
    return values.astype(np.min_scalar_type(-1 - int(np.abs(values).max(initial=0))))


def _matrix_of(arrays: Mapping[str, np.ndarray], name: str) -> sparse.csr_array:
    data, columns, starts, shape = (arrays[f"{name}.{part}"] for part in ("data", "columns", "starts", "shape"))
    matrix = sparse.csr_array((data.astype(np.float32), columns, starts), shape=tuple(shape.tolist()))
    matrix.check_format(full_check=True)  # a file may come from elsewhere
    return matrix


def _check_values(arrays: Mapping[str, np.ndarray]) -> None:
    for name, values in arrays.items():
        least = np.finfo(np.float32).tiny if name in ("liked.data", "likes.data") else -_LARGEST  # counts are positive
        if values.dtype.kind == "f" or least > 0:
            wrong = values[~((least <= values) & (values <= _LARGEST))]
            if len(wrong):
                raise ValueError(f"{name} has {wrong[0]}")


def _check_sizes(arrays: Mapping[str, np.ndarray], vectors: Any, liked: Any, matrix: Any) -> None:
    """Raise `ValueError` where one part is of other conversations, people, likes or items than another."""
    people, (conversations, items) = len(set(arrays["people"].tolist())), liked.shape
    sizes = {"items": items, "voters": conversations, "voted": conversations, "liked_in": matrix.nnz, "people": people}
    shapes: dict[str, tuple[Any, Any]] = {name: (arrays[name].shape, (size,)) for name, size in sizes.items()}
    shapes |= {"likes": (matrix.shape, (people, items)), "vectors": (vectors.shape[1:], (conversations,))}
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise ValueError(f"{name} has the shape {found}, not {expected}")


def _keys(catalog: Catalog) -> np.ndarray:
    """Return a number for each item, by which another catalog finds it. Shape: (C,), int64."""
    lines = (str(item).encode() for item in catalog.items)
    digests = b"".join(hashlib.blake2b(line, digest_size=8).digest() for line in lines)
    return np.frombuffer(digests, dtype=np.int64)


def _moved(
    matrix: sparse.csr_array, values: np.ndarray, columns: np.ndarray, num_items: int
) -> tuple[sparse.csr_array, np.ndarray]:
    """Return a matrix with its columns at other places, without those at -1, and the values beside its entries."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    to = columns[matrix.indices]
    kept = np.flatnonzero(to >= 0)
    kept = kept[np.lexsort((to[kept], rows[kept]))]
    cells = (rows[kept], to[kept])
    return sparse.csr_array((matrix.data[kept], cells), shape=(matrix.shape[0], num_items)), values[kept]


def _numbers(months: np.ndarray) -> np.ndarray:
    """Return months as numbers, as in 202203; 0 is none."""
    return np.array([int(month.replace("-", "") or 0) for month in months.tolist()], dtype=np.int32)


def _months(numbers: np.ndarray) -> np.ndarray:
    return np.array(
        [f"{number // 100:04}-{number % 100:02}" if number else "" for number in numbers.tolist()], dtype=str
    )
