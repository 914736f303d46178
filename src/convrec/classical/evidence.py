"""Evidence about what people will like, as scores of prompts: likes of similar people, and the texts of the items.

Most terms are the logarithm of a share p of the evidence, log(p + 0.001) up to a constant: the weighted sum of such
terms is a log-linear pool of distributions over the catalog. Related: CRAG (Zhu et al., WWW 2025), which
retrieves collaboratively for an LLM.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file
from scipy import sparse

from convrec.classical.collaborative import ItemKnn, Likes, Named
from convrec.classical.embedding import Embedder, TfidfEmbedder
from convrec.classical.neighbours import Neighbours, product
from convrec.classical.scores import BLOCK, Scores, largest, row_blocks, sparse_scores
from convrec.data.catalog import Catalog, short_values
from convrec.data.conversations import Row, month_of, person_key, transcript
from convrec.data.row_wishes import wishes_of
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

Kind = Literal["popularity", "recent", "neighbours", "item_knn", "content", "fields", "words", "encoder", "wishes"]
EVIDENCE: tuple[Kind, ...] = get_args(Kind)
_SCALE = 1000.0  # log(1 + 1000 p) is log(p + 0.001) up to a constant
_LARGEST = 10**9  # of a number in a file
_DECAY = 0.25  # weight of a like in `recent`, for each month that it is older


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
        remedy = "make it again (`dvc repro --force evidence guidance`), or use another version"
        raise InputError(f"{path}: damaged ({reason}); {remedy}") from None


class Saved(BaseModel, strict=True, allow_inf_nan=False):
    """Settings in a file, without silent conversions."""


class _Settings(Saved):
    number: int = Field(ge=1, le=_LARGEST)
    kept: int = Field(ge=1, le=_LARGEST)


@dataclass
class Evidence:
    """The evidence that training rows give about prompts: vectors of conversations and likes, no texts.

    `number` conversations vote for a prompt, and `kept` items of it have a score by each kind that is a share.
    """

    catalog: Catalog
    neighbours: Neighbours
    likes: Likes
    number: int
    kept: int
    device: str = "cpu"
    _texts: list[tuple[Embedder, Any]] = field(default_factory=list)  # of the items, once they are needed
    _recents: dict[int, np.ndarray] = field(default_factory=dict)  # the likes before a month, weighed

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
            **_csr("named", voters.named),
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
            liked, matrix, named = (_matrix_of(arrays, name) for name in ("liked", "likes", "named"))
            vectors = arrays["vectors"] if "vectors" in arrays else _matrix_of(arrays, "vectors")
            _check_sizes(arrays, vectors, liked, matrix, named)
            people = {person: place for place, person in enumerate(arrays["people"].tolist())}
            months = _months(arrays["liked_in"])
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
            both = np.concatenate((columns, np.where(columns < 0, -1, columns + len(catalog))))
            named, _ = _moved(named, np.empty(named.nnz), both, 2 * len(catalog))
        voters = Neighbours(made, vectors, liked, arrays["voters"], named)
        return cls(catalog, voters, Likes(matrix, people, months), settings.number, settings.kept, device)

    def terms(self, prompts: Sequence[Row], *, without_own: bool, kinds: Sequence[str] = EVIDENCE) -> dict[str, Scores]:
        """Return the scores of the prompts by each kind of evidence. Shape: (B, C) each.

        - `neighbours`: the share of the votes of the most similar conversations.
        - `item_knn`: the share of the summed similarities to the items that the prompt names as liked.
        - `popularity`: how many people like an item.
        - `recent`: the likes of an item before the prompt's month, a quarter as much for each month of age.
        - `content`: the share of the cosines of an item's text with those of the items that the prompt names as liked.
        - `fields`: the share of the cosines of an item's short values, such as genres, with those of the liked items.
        - `words`: the share of the cosines of an item's text with the words of the conversation.
        - `encoder`: the share of the predictions of a regression on the words and the named items (see `Encoder`).
        - `wishes`: how many of the conversation's wishes that are preferred, not kept, an item fits. They are read from
          its messages, unless the prompt has them as `wishes`.

        `without_own` leaves out what the prompt's person said and liked.
        """
        if not prompts:
            return {kind: sparse_scores(sparse.csr_array((0, len(self.catalog)), dtype=np.float32)) for kind in kinds}
        named = Named.of(prompts, self.catalog)
        own = self.likes.own(prompts) if without_own else sparse.csr_array((len(prompts), len(self.catalog)))
        shares: dict[str, Callable[[slice], np.ndarray]] = {}
        if "neighbours" in kinds:
            nearest = self.neighbours.nearest(prompts, self.number, without_own=without_own)
            shares["neighbours"] = partial(nearest.votes, neighbours=self.number)
        if "item_knn" in kinds:
            shares["item_knn"] = lambda part: self._item_knn.scores(
                named.part(part), without=own[part] if without_own else None
            )
        if "encoder" in kinds:
            people = [person_key(row) for row in prompts] if without_own else [-1] * len(prompts)
            shares["encoder"] = lambda part: self.neighbours.encoder.scores(
                self.neighbours.embed(prompts[part]), named.part(part).both, people[part]
            )
        for kind, (queries, items) in self._queries(prompts, named, kinds).items():
            shares[kind] = partial(_cosines, queries, items)
        found: dict[str, Scores] = {}
        for kind, values in shares.items():
            blocks = row_blocks(len(prompts), len(self.catalog))
            parts = [log_shares(values(part), self.kept) for part in blocks]
            found[kind] = sparse_scores(sparse.vstack(parts, format="csr"), self.device)
            if len(prompts) > BLOCK:
                logger.info("%s: %d prompts", kind, len(prompts))
        if "popularity" in kinds:
            counts = self.likes.matrix.sum(axis=0)
            left_out = own.copy()
            left_out.data = np.log(counts[own.indices] / (counts[own.indices] + 1)).astype(np.float32)
            found["popularity"] = self._by_row(np.zeros(len(prompts), dtype=int), np.log1p(counts)[None], left_out)
        if "recent" in kinds:
            found["recent"] = self._recent(prompts, without_own)
        if "wishes" in kinds:
            found["wishes"] = self._preferred(prompts)
        return {kind: found[kind] for kind in kinds}

    def _by_row(self, rows: np.ndarray, table: np.ndarray, bonus: sparse.csr_array) -> Scores:
        """Return the scores that have a row of a table (rows, C) for each prompt, with a bonus."""
        chosen = np.eye(len(table), dtype=np.float32)[rows]
        return Scores(chosen, table.T.astype(np.float32), bonus, device=self.device)

    @cached_property
    def _item_knn(self) -> ItemKnn:
        return ItemKnn(self.likes.matrix)

    @cached_property
    def _told(self) -> np.ndarray:
        """The months of the likes as numbers that rise by 1 from each to the next, 0 for none. Shape: (likes,)."""
        return _places(self.likes.months)

    def _recent(self, prompts: Sequence[Row], without_own: bool) -> Scores:
        likes, told, size = self.likes.matrix, self._told, len(self.catalog)
        after = told.max(initial=0) + 1  # the month of a later prompt, and of one without a date
        asked = _places(np.array([month_of(row) for row in prompts], dtype=str))
        asked = np.where((asked > 0) & (asked < after), asked, after)

        def weights(told: np.ndarray, asked: Any) -> np.ndarray:
            return np.where((told > 0) & (told < asked), _DECAY ** np.maximum(asked - told - 1.0, 0), 0)

        months, of_month = np.unique(asked, return_inverse=True)
        for month in set(months.tolist()) - set(self._recents):
            self._recents[month] = np.bincount(likes.indices, weights(told, month), size)
        table = np.array([self._recents[month] for month in months.tolist()]).reshape(-1, size)
        left_out = sparse.csr_array((len(prompts), size), dtype=np.float32)
        if without_own:
            dated = sparse.csr_array((told.astype(np.float32), likes.indices, likes.indptr), shape=likes.shape)
            left_out = self.likes._replace(matrix=dated).own(prompts)
            rows = np.repeat(np.arange(len(prompts)), np.diff(left_out.indptr))
            whole = table[of_month[rows], left_out.indices]
            rest = whole - weights(left_out.data, asked[rows])
            left_out.data = (np.log1p(rest) - np.log1p(whole)).astype(np.float32)
        return self._by_row(of_month, np.log1p(table), left_out)

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

    def _queries(self, prompts: Sequence[Row], named: Named, kinds: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        """Return vectors of prompts, and of items that are compared with them. Shape: (B, D) and (D, C) each."""
        queries: dict[str, tuple[Any, Any]] = {}
        means = (sparse.diags_array(1 / np.maximum(named.liked.sum(axis=1), 1)) @ named.liked).T.tocsr()
        if "content" in kinds:
            queries["content"] = (self._item_texts()[1] @ means).T, self._item_texts()[1]
        if "fields" in kinds:
            vectors = self.catalog.once(_field_vectors)
            queries["fields"] = (vectors @ means).T, vectors
        if "words" in kinds:
            embedder, vectors = self._item_texts()
            queries["words"] = embedder.embed_conversations([transcript(row["messages"]) for row in prompts]), vectors
        return {kind: (own.tocsr() if sparse.issparse(own) else own, items) for kind, (own, items) in queries.items()}


def _cosines(queries: Any, items: Any, part: slice) -> np.ndarray:
    return product(queries[part], items)


def _field_vectors(catalog: Catalog) -> sparse.csr_array:
    """Return the items' short values, those of each field as a unit vector, rare ones the heaviest (values, C)."""
    fields: dict[str, dict[str, list[int]]] = {}
    for place, item in enumerate(catalog.items):
        for name, values in short_values(item).items():
            for value in dict.fromkeys(values):
                fields.setdefault(name, {}).setdefault(value, []).append(place)
    found = [sparse.csr_array((0, len(catalog)), dtype=np.float32)]
    for places_of in fields.values():
        own = list(places_of.values())
        starts, places = np.cumsum([0, *map(len, own)]), np.concatenate(own)
        weights = np.repeat(np.log1p(len(catalog) / np.diff(starts)), np.diff(starts))
        lengths = np.sqrt(np.bincount(places, weights**2, len(catalog)))
        found.append(sparse.csr_array((weights / lengths[places], places, starts), shape=(len(own), len(catalog))))
    return sparse.vstack(found, format="csr").astype(np.float32)


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


def _check_sizes(arrays: Mapping[str, np.ndarray], vectors: Any, liked: Any, matrix: Any, named: Any) -> None:
    """Raise `ValueError` where one part is of other conversations, people, likes or items than another."""
    people, (conversations, items) = len(set(arrays["people"].tolist())), liked.shape
    sizes = {"items": items, "voters": conversations, "liked_in": matrix.nnz, "people": people}
    shapes: dict[str, tuple[Any, Any]] = {name: (arrays[name].shape, (size,)) for name, size in sizes.items()}
    shapes |= {"likes": (matrix.shape, (people, items)), "vectors": (vectors.shape[1:], (conversations,))}
    shapes["named"] = named.shape, (conversations, 2 * items)
    if "terms" in arrays:
        shapes["is_word"] = arrays["is_word"].shape, arrays["terms"].shape
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


def _places(months: np.ndarray) -> np.ndarray:
    """Return months as numbers that rise by 1 from each to the next; 0 is none."""
    numbers = _numbers(months)
    return numbers // 100 * 12 + numbers % 100


def _months(numbers: np.ndarray) -> np.ndarray:
    return np.array(
        [f"{number // 100:04}-{number % 100:02}" if number else "" for number in numbers.tolist()], dtype=str
    )
