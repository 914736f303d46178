"""Evidence about what people will like, as scores of prompts: likes of similar people, and the texts of the items.

Most terms are the logarithm of a share p of the evidence, log(p + 0.001) up to a constant: the weighted sum of such
terms is a log-linear pool of distributions over the catalog. Related: CRAG (Zhu et al., WWW 2025), which
retrieves collaboratively for an LLM.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
from pydantic import Field
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from scipy import sparse

from convrec.classical.collaborative import ItemKnn, Likes, Named
from convrec.classical.embedding import Embedder, TfidfEmbedder
from convrec.classical.encoder import Encoder, item_vectors
from convrec.classical.neighbours import Neighbours, product
from convrec.classical.scores import BLOCK, Matrix, Scores, largest, row_blocks, sparse_scores
from convrec.classical.stored import (
    LARGEST,
    Saved,
    as_saved,
    check_values,
    compact,
    csr_arrays,
    intact,
    matrix_of,
    moved,
)
from convrec.classical.told import Told, month_number, named_items
from convrec.data.catalog import Catalog, short_values
from convrec.data.catalog_requests import catalog_requests
from convrec.data.conversations import Row, month_of, transcript
from convrec.data.row_files import chosen_rows
from convrec.data.wish_reader import is_rare, wishes_of
from convrec.data.wishes import Wish
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

Shares = Literal["popularity", "recent", "neighbours", "item_knn", "content", "fields", "words", "encoder"]
Preferences = Literal["wishes", "asked"]
Kind = Literal[Shares, Preferences]
SHARES: tuple[Shares, ...] = get_args(Shares)
PREFERENCES: tuple[Preferences, ...] = get_args(Preferences)
EVIDENCE: tuple[Kind, ...] = (*SHARES, *PREFERENCES)
NEIGHBOURS = 200  # most similar training conversations, which vote
KEPT = 200  # best items of a prompt that it prefers
_SCALE = 1000.0  # log(1 + 1000 p) is log(p + 0.001) up to a constant
_REQUESTS, _MOST_REQUESTS = 0.25, 10_000  # that the encoder learns, for each conversation, and at most
# Nats of what is asked for and particular, of what training does not teach (also where a title is liked), of what is
# mentioned and few items fit, and of what fits all that is said.
_FIRST, _UNTAUGHT, _LEAD, _ALL = 8.0, (6.0, 3.0), 4.0, 3.0
# Conversations of training that prefer a value, from which it is taught what that says, of so many of the newest ones.
_TAUGHT, _MOST_READ = 5, 50_000
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


class _Settings(Saved):
    number: int = Field(ge=1, le=LARGEST)
    kept: int = Field(ge=1, le=LARGEST)
    taught: frozenset[str]


@dataclass
class Evidence:
    """The evidence that training rows give about prompts: vectors of conversations and likes, no texts.

    `number` conversations vote for a prompt, and `kept` items of it have a score by each kind that is a share. `taught`
    are the wishes that enough conversations prefer.
    """

    catalog: Catalog
    neighbours: Neighbours
    likes: Likes
    encoder: Encoder
    number: int
    kept: int
    taught: frozenset[str] = frozenset()
    device: str = "cpu"
    _recents: dict[int, np.ndarray] = field(default_factory=dict)  # the likes before a month, weighed

    @classmethod
    def fit(
        cls,
        train: Sequence[Row] | Told,
        catalog: Catalog,
        embedder: Callable[[Sequence[str]], Embedder],
        *,
        neighbours: int = NEIGHBOURS,
        kept: int = KEPT,
        device: str = "cpu",
    ) -> "Evidence":
        """Return the evidence of these rows; `embedder` makes an embedder from their conversations.

        Of more than `told.MOST_CONVERSATIONS`, only the newest vote and teach; likes are those of all. Wishes are read
        of the newest 50,000.
        """
        told = Told.of(train, catalog)
        recent, likes = told.recent(), Likes.of(told, catalog)
        voters = Neighbours.fit(recent, catalog, embedder)
        voters = replace(voters, vectors=as_saved(voters.vectors))
        found = cls(
            catalog, voters, likes, Encoder.empty(len(catalog)), neighbours, kept, _taught(recent, catalog), device
        )
        words, liked = _with_requests(voters, catalog)
        named = Named.of(chosen_rows(recent.rows, recent.distinct()[0]), catalog).both
        named.resize(liked.shape[0], named.shape[1])  # requests name none
        is_tfidf = isinstance(voters.embedder, TfidfEmbedder)
        vectors = catalog.once(_tfidf_item_vectors) if is_tfidf else item_vectors(found._texts[1].T)
        return replace(found, encoder=Encoder.fit(words, named, liked, vectors))

    def save(self, path: Path) -> None:
        """Write the evidence to a safetensors file; an embedder other than TF-IDF is not in it."""
        voters, likes = self.neighbours, self.likes
        embedder = voters.embedder.arrays() if isinstance(voters.embedder, TfidfEmbedder) else {}
        vectors: Any = voters.vectors
        is_sparse = sparse.issparse(vectors)
        arrays = {
            "items": _keys(self.catalog),
            **embedder,
            **(csr_arrays("vectors", vectors) if is_sparse else {"vectors": compact(np.ascontiguousarray(vectors))}),
            **csr_arrays("liked", voters.liked),
            "voters": voters.people,
            **{f"encoder.{name}": values for name, values in self.encoder.arrays().items()},
            **csr_arrays("likes", likes.matrix),
            "people": likes.people,
            "liked_in": compact(likes.months),
        }
        settings = {"number": self.number, "kept": self.kept, "taught": sorted(self.taught)}
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
            check_values(arrays, positive=("liked.data", "likes.data"))
            liked, matrix = (matrix_of(arrays, name) for name in ("liked", "likes"))
            vectors = arrays["vectors"].astype(np.float32) if "vectors" in arrays else matrix_of(arrays, "vectors")
            _check_sizes(arrays, vectors, liked, matrix)
            encoder = Encoder.of_arrays({name: arrays[f"encoder.{name}"] for name in get_type_hints(Encoder)})
            people, months = arrays["people"].astype(np.int64), arrays["liked_in"].astype(np.int32)
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
            liked, _ = moved(liked, np.empty(liked.nnz), columns, len(catalog))
            matrix, months = moved(matrix, months, columns, len(catalog))
            encoder = encoder.moved(columns, len(catalog))
        voters, likes = Neighbours(made, vectors, liked, arrays["voters"]), Likes(matrix, people, months)
        return cls(catalog, voters, likes, encoder, settings.number, settings.kept, settings.taught, device)

    def terms(self, prompts: Sequence[Row], kinds: Sequence[str] = EVIDENCE) -> dict[str, Scores]:
        """Return the scores of the prompts by each kind of evidence. Shape: (B, C) each.

        - `neighbours`: the share of the votes of the most similar conversations.
        - `item_knn`: the share of the summed similarities to the items that the prompt names as liked.
        - `popularity`: how many people like an item; as the logarithm, less that of the best item, as the next one.
        - `recent`: its likes before the prompt's month, a quarter as much for each month of age.
        - `content`: the share of the cosines of an item's text with those of the items that the prompt names as liked.
        - `fields`: the share of the cosines of an item's short values, such as genres, with those of the liked items.
        - `words`: the share of the cosines of an item's text with the words of the conversation.
        - `encoder`: the log-probability by the words and the named items (see `Encoder`).
        - `wishes`: how many of the conversation's wishes that are preferred, not kept, an item fits; without those that
          are asked for in so many words.
        - `asked`: the mean of 1 + log(C / n) over these, each of which n items fit, 0 where an item does not fit. So
          what is rare, or the only thing that is asked for, counts most. Wishes are read from the messages, unless the
          prompt has them as `wishes`.
        """
        if not prompts:
            return {kind: sparse_scores(sparse.csr_array((0, len(self.catalog)), dtype=np.float32)) for kind in kinds}
        named = Named.of(prompts, self.catalog)
        values: dict[str, Callable[[slice], np.ndarray]] = {}
        if "neighbours" in kinds:
            nearest = self.neighbours.nearest(prompts, self.number)
            values["neighbours"] = partial(nearest.votes, neighbours=self.number)
        if "item_knn" in kinds:
            values["item_knn"] = lambda part: self._item_knn.scores(named.part(part))
        if "encoder" in kinds:
            words, both = sparse.csr_array(self.neighbours.embed(prompts)), named.both
            values["encoder"] = lambda part: self.encoder.scores(words[part], both[part])
        for kind, (queries, items) in self._queries(prompts, named, kinds).items():
            values[kind] = partial(_cosines, queries, items)
        found: dict[str, Scores] = {}
        for kind, own in values.items():
            best = above_next if kind == "encoder" else log_shares
            parts = [best(own(part), self.kept) for part in row_blocks(len(prompts), len(self.catalog))]
            found[kind] = sparse_scores(sparse.vstack(parts, format="csr"), self.device)
            if len(prompts) > BLOCK:
                logger.info("%s: %d prompts", kind, len(prompts))
        if "popularity" in kinds:
            found["popularity"] = self._by_row(np.zeros(len(prompts), dtype=int), self._num_likes)
        if "recent" in kinds:
            found["recent"] = self._recent(prompts)
        found |= {kind: self._preferred(prompts, kind == "asked") for kind in PREFERENCES if kind in kinds}
        return {kind: found[kind] for kind in kinds}

    def _by_row(self, rows: np.ndarray, likes: np.ndarray) -> Scores:
        """Return log(1 + likes) of a row of a table (rows, C) for each prompt, less the largest of that row."""
        table = np.log1p(likes)
        table = (table - table.max(axis=1, keepdims=True)).astype(np.float32)
        nothing = sparse.csr_array((len(rows), table.shape[1]), dtype=np.float32)
        return Scores(np.eye(len(table), dtype=np.float32)[rows], table.T, nothing, device=self.device)

    @cached_property
    def _num_likes(self) -> np.ndarray:
        return np.asarray(self.likes.matrix.sum(axis=0)).reshape(1, -1)

    @cached_property
    def _item_knn(self) -> ItemKnn:
        return ItemKnn(self.likes.matrix)

    def _recent(self, prompts: Sequence[Row]) -> Scores:
        likes, told = self.likes.matrix, self.likes.months
        after = told.max(initial=0) + 1  # the month of a later prompt, and of one without a date
        asked = np.array([month_number(month_of(row)) for row in prompts], dtype=np.int32)
        months, of_month = np.unique(np.where((asked > 0) & (asked < after), asked, after), return_inverse=True)
        for month in set(months.tolist()) - set(self._recents):
            weights = np.where((told > 0) & (told < month), _DECAY ** np.maximum(month - told - 1.0, 0), 0)
            self._recents[month] = np.bincount(likes.indices, weights, likes.shape[1])
        return self._by_row(of_month, np.array([self._recents[month] for month in months.tolist()]))

    def firsts(self, prompts: Sequence[Row]) -> Scores:
        """Return the nats that put items before others, beside the fitted weights: those of what people mean.

        What fits a soft wish comes first, where it is not kept. The fit does not know what a value means that hardly a
        conversation of training prefers, so it leads as well, if at most half of the items fit. Where a conversation
        names no title that is liked, what few items fit leads, however it is said, and so does what fits all that is
        said.
        """

        def nats_of(row: Row) -> Iterator[tuple[str, np.ndarray, float]]:
            wanted, is_bare = self._wanted(row), not named_items(row, self.catalog)[0]
            for wish, fits in wanted:
                is_untaught = wish.text not in self.taught and 2 * fits.sum() <= len(fits)  # not "less horror"
                lead = _LEAD if is_bare and is_rare(fits) else 0.0
                lead = max(lead, _UNTAUGHT[not is_bare] if is_untaught else 0.0)
                yield wish.text, fits, _FIRST if wish.is_soft else lead
            if is_bare and len(wanted) > 1:
                used = [wish for wish in wishes_of(row, self.catalog) if wish.state in ("kept", "preferred")]
                fits = np.logical_and.reduce([wish.fits for wish in used if wish.fits is not None])
                yield " and ".join(wish.text for wish in used), fits, _ALL

        return self._fitting(prompts, nats_of)

    def _preferred(self, prompts: Sequence[Row], is_asked: bool) -> Scores:
        def weights_of(row: Row) -> Iterator[tuple[str, np.ndarray, float]]:
            wanted = [(wish, fits) for wish, fits in self._wanted(row) if wish.is_asked == is_asked]
            for wish, fits in wanted:
                rarity = 1 + np.log(len(fits) / max(1, fits.sum()))
                yield wish.text, fits, rarity / len(wanted) if is_asked else 1.0

        return self._fitting(prompts, weights_of)

    def _wanted(self, row: Row) -> list[tuple[Wish, np.ndarray]]:
        """Return what a row's user prefers, each wish once, with the items that fit it."""
        wishes = {wish.text: wish for wish in wishes_of(row, self.catalog) if _is_preferred(wish)}
        return [(wish, wish.fits) for wish in wishes.values() if wish.fits is not None]

    def _fitting(
        self, prompts: Sequence[Row], weights_of: Callable[[Row], Iterator[tuple[str, np.ndarray, float]]]
    ) -> Scores:
        size = len(self.catalog)
        columns = dict[str, tuple[int, sparse.csr_array]]()  # by the text of a wish
        cells = dict[tuple[int, int], float]()
        for place, row in enumerate(prompts):
            for text, fits, weight in weights_of(row):
                if text not in columns:
                    columns[text] = len(columns), sparse.csr_array(fits[None].astype(np.float32))
                cells[place, columns[text][0]] = weight
        fits_of = [fits for _, fits in columns.values()]
        table = sparse.vstack([sparse.csr_array((0, size), dtype=np.float32), *fits_of]).T.tocsr()
        at = np.array(list(cells), dtype=np.int64).reshape(-1, 2).T
        weights = np.array(list(cells.values()), dtype=np.float32)
        chosen = sparse.csr_array((weights, (at[0], at[1])), shape=(len(prompts), len(fits_of)))
        return Scores(chosen, table, sparse.csr_array((len(prompts), size)), device=self.device)

    @cached_property
    def _texts(self) -> tuple[Embedder, Any]:
        """The embedder of items, TF-IDF of their own texts or that of conversations, and their vectors (D, C)."""
        embedder = self.neighbours.embedder
        if isinstance(embedder, TfidfEmbedder):
            return self.catalog.once(_tfidf_texts)
        vectors = embedder.embed_items([item.text() for item in self.catalog.items]).T
        return embedder, vectors if isinstance(vectors, np.ndarray) else vectors.tocsr()

    def _queries(self, prompts: Sequence[Row], named: Named, kinds: Sequence[str]) -> dict[str, tuple[Any, Any]]:
        """Return vectors of prompts, and of items that are compared with them. Shape: (B, D) and (D, C) each."""
        queries: dict[str, tuple[Any, Any]] = {}
        means = (sparse.diags_array(1 / np.maximum(named.liked.sum(axis=1), 1)) @ named.liked).T.tocsr()
        if "content" in kinds:
            queries["content"] = (self._texts[1] @ means).T, self._texts[1]
        if "fields" in kinds:
            vectors = self.catalog.once(_field_vectors)
            queries["fields"] = (vectors @ means).T, vectors
        if "words" in kinds:
            embedder, vectors = self._texts
            queries["words"] = embedder.embed_conversations([transcript(row["messages"]) for row in prompts]), vectors
        return {kind: (own.tocsr() if sparse.issparse(own) else own, items) for kind, (own, items) in queries.items()}


def _taught(told: Told, catalog: Catalog) -> frozenset[str]:
    """Return the texts of the wishes that enough conversations of training prefer."""
    told = told.recent(_MOST_READ)  # 1,000 characters take 5 ms
    first, preferred = told.distinct()[0], told.preferred
    unread = first[[key not in preferred for key in told.conversations[first].tolist()]]
    for key, row in zip(told.conversations[unread].tolist(), chosen_rows(told.rows, unread), strict=True):
        preferred[key] = tuple({wish.text for wish in wishes_of(row, catalog) if _is_preferred(wish)})
    said = Counter(text for key in told.conversations[first].tolist() for text in preferred[key])
    return frozenset(text for text, number in said.items() if number >= _TAUGHT)


def _is_preferred(wish: Wish) -> bool:
    """Return whether a wish raises weights; where a soft one is kept, all open items fit."""
    return wish.state == "preferred" or (wish.is_soft and wish.state == "kept")


def _with_requests(voters: Neighbours, catalog: Catalog) -> tuple[Matrix, sparse.csr_array]:
    """Return vectors and liked items of the conversations, and of `catalog_requests`. Shape: (n, D), (n, C)."""
    vectors, liked = sparse.csr_array(voters.vectors.T), voters.liked
    requests = catalog_requests(catalog, min(_MOST_REQUESTS, int(_REQUESTS * liked.shape[0])), seed=0)
    if not requests:
        return vectors, liked
    own = voters.embedder.embed_conversations([request.words for request in requests])
    starts = np.cumsum([0, *(len(request.items) for request in requests)])
    items = np.concatenate([request.items for request in requests])
    fits = sparse.csr_array((np.ones(len(items)), items, starts), shape=(len(requests), len(catalog)))
    return sparse.vstack([vectors, sparse.csr_array(own)], "csr"), sparse.vstack([liked, fits], "csr")


def _cosines(queries: Any, items: Any, part: slice) -> np.ndarray:
    return product(queries[part], items)


def _tfidf_texts(catalog: Catalog) -> tuple[Embedder, Any]:
    """Return the embedder of the items' texts, fitted on them, and their vectors (D, C)."""
    texts = [item.text() for item in catalog.items]
    embedder = TfidfEmbedder(texts)
    return embedder, embedder.embed_items(texts).T.tocsr()


def _tfidf_item_vectors(catalog: Catalog) -> np.ndarray:
    return item_vectors(catalog.once(_tfidf_texts)[1].T)


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


def _check_sizes(arrays: Mapping[str, np.ndarray], vectors: Any, liked: Any, matrix: Any) -> None:
    """Raise `ValueError` where one part is of other conversations, people, likes or items than another."""
    people, (conversations, items) = len(np.unique(arrays["people"])), liked.shape
    sizes = {"items": items, "voters": conversations, "liked_in": matrix.nnz, "people": people}
    shapes: dict[str, tuple[Any, Any]] = {name: (arrays[name].shape, (size,)) for name, size in sizes.items()}
    shapes |= {"likes": (matrix.shape, (people, items)), "vectors": (vectors.shape[1:], (conversations,))}
    known, size = arrays["encoder.items"].shape
    shapes |= {
        f"encoder.{name}": (arrays[f"encoder.{name}"].shape, expected)
        for name, expected in {
            "words": (len(arrays["encoder.columns"]), size),
            "named": (2 * items, size),
            "liked": (items, size),
            "places": (known,),
            "bias": (known,),
        }.items()
    }
    for name, (found, expected) in shapes.items():
        if found != expected:
            raise ValueError(f"{name} has the shape {found}, not {expected}")


def _keys(catalog: Catalog) -> np.ndarray:
    """Return a number for each item, by which another catalog finds it. Shape: (C,), int64."""
    lines = (str(item).encode() for item in catalog.items)
    digests = b"".join(hashlib.blake2b(line, digest_size=8).digest() for line in lines)
    return np.frombuffer(digests, dtype=np.int64)
