"""Remap: from a teacher's written list to a score for every catalog item (method, stage 1.2)."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse

from convrec.classical.embedding import Embedder
from convrec.classical.scores import Matrix, Mixture, Scores
from convrec.data.catalog import Catalog
from convrec.data.parsing import Entry
from convrec.demonstrations.grounding import KINDS, Grounder, Match

SOURCES = (*KINDS, "semantic")


class TeacherItems(NamedTuple):
    """The lists of a teacher as p, 1/sqrt(k) for the item at rank k, and the distinct items, its columns.

    `mentions` counts how often each was written. Shape: weights (lists, items), sparse; matches, mentions (items,).
    """

    weights: sparse.csr_array
    items: list[Entry]
    matches: list[Match | None]
    mentions: np.ndarray


def position_weights(lists: Iterable[Sequence[Entry]], grounder: Grounder) -> TeacherItems:
    """Return p, the items of the lists, each of which is needed only once, and what the items name in the catalog.

    An item that a list repeats keeps its first rank, whatever the spelling in which it comes again.
    """
    column: dict[Entry, int] = {}
    items: list[Entry] = []
    columns, ends, weights = array("i"), array("q", [0]), array("f")
    for entries in lists:
        for rank, entry in enumerate(entries, start=1):
            at = column.setdefault(entry, len(items))
            if at == len(items):
                items.append(entry)
            columns.append(at)
            weights.append(rank**-0.5)
        ends.append(len(columns))
    written, bounds = np.array(columns, dtype=np.int64), np.array(ends)
    matches = grounder.match(items)
    first: dict[tuple[int, ...], int] = {}  # catalog items -> the first spelling of them
    same = np.array([first.setdefault(m.indices, at) if m else at for at, m in enumerate(matches)], dtype=np.int64)
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    keys = rows * max(1, len(items)) + same[written]
    _, kept = np.unique(keys, return_index=True)  # the first of each list's equals: its best rank
    kept.sort()
    values = (np.array(weights, dtype=np.float32)[kept], (rows[kept], written[kept]))
    matrix = sparse.csr_array(values, shape=(len(bounds) - 1, len(items)))
    return TeacherItems(matrix, items, matches, np.bincount(written, minlength=len(items)))


class Sources:
    """Which of `SOURCES` placed an item: the match by which it came into a list, else similarity.

    Of two matches it is that of the earlier rank. The arguments are the teacher's p, and what `_identity` returns.
    """

    def __init__(self, weights: sparse.csr_array, identity: sparse.csr_array, kinds: np.ndarray):
        self._num_items = identity.shape[1]
        lists = np.repeat(np.arange(weights.shape[0], dtype=np.int64), np.diff(weights.indptr))
        counts = np.diff(identity.indptr)[weights.indices]
        starts = np.repeat(identity.indptr[weights.indices], counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = starts + within
        keys = np.repeat(lists, counts) * self._num_items + identity.indices[entries]
        self._keys, first = np.unique(keys, return_index=True)
        self._kinds = kinds[entries][first]

    def of(self, top: np.ndarray) -> np.ndarray:
        """Return the source, as an index into `SOURCES`, of the items of each list. Shape: (B, N), as `top`."""
        wanted = np.arange(len(top), dtype=np.int64)[:, None] * self._num_items + top
        if not len(self._keys):
            return np.full(top.shape, SOURCES.index("semantic"), dtype=np.int8)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[at] == wanted, self._kinds[at], SOURCES.index("semantic")).astype(np.int8)


class Remapped(NamedTuple):
    """s_remap, the source of each item, and the teacher's items."""

    scores: Scores
    sources: Sources
    teacher: TeacherItems


def _identity(matches: Sequence[Match | None], num_items: int) -> tuple[sparse.csr_array, np.ndarray]:
    """Return I_ic, 1 over the number of readings where a teacher's item names a catalog item, and its kind's index."""
    named = [(row, i, 1 / len(m.indices), KINDS.index(m.kind)) for row, m in enumerate(matches) if m for i in m.indices]
    rows, columns, values, kinds = (np.array(part) for part in zip(*named, strict=True)) if named else ([],) * 4
    shape = (len(matches), num_items)
    identity = sparse.csr_array((np.asarray(values, dtype=np.float32), (rows, columns)), shape=shape)
    return identity, np.asarray(kinds, dtype=np.int8)


def remap(
    lists: Iterable[Sequence[Entry]],
    conversations: Sequence[str],
    catalog: Catalog,
    embedder: Embedder,
    grounder: Grounder,
    *,
    item_texts: Sequence[str] | None = None,
    describe: Callable[[Sequence[Entry]], Sequence[str]] | None = None,
    device: str = "cpu",
) -> Remapped:
    """Return s_remap = p · (S_item-item + I_ic) + s_conv-item of every conversation.

    S_item-item is the cosine of a teacher item's text with each catalog item's text (`item_texts`; by default title,
    year and metadata). A teacher item that the catalog holds has that item's text; another one has the text that
    `describe` gives it, by default its title and year. Because S is E · Vᵀ, p · S is (p · E) · Vᵀ: the scores of
    a conversation are those of one vector, and are computed in blocks.

    Shape: as many lists as conversations, B; scores (B, C).
    """
    teacher = position_weights(lists, grounder)
    if teacher.weights.shape[0] != len(conversations):
        raise ValueError(f"{teacher.weights.shape[0]} lists for {len(conversations)} conversations")
    vectors = embedder.embed_items(list(item_texts or [item.text() for item in catalog.items]))
    queries = embedder.embed_conversations(conversations)
    outside = [entry for entry, match in zip(teacher.items, teacher.matches, strict=True) if match is None]
    texts = describe(outside) if describe and outside else [str(entry) for entry in outside]
    described = embedder.embed_items(texts) if outside else vectors[:0]
    mixture = Mixture(teacher.weights, _item_vectors(teacher.matches, vectors, described)) if teacher.items else None
    identity, kinds = _identity(teacher.matches, len(catalog))
    bonus = (teacher.weights @ identity).tocsr()
    scores = Scores(queries, vectors, bonus, mixture, device)
    return Remapped(scores, Sources(teacher.weights, identity, kinds), teacher)


def _item_vectors(matches: Sequence[Match | None], vectors: Matrix, outside: Matrix) -> Matrix:
    """Return the vector of each teacher item: that of the catalog item which it names first, else its own in turn."""
    after = iter(range(vectors.shape[0], vectors.shape[0] + outside.shape[0]))
    rows = [next(after) if match is None else match.indices[0] for match in matches]
    if isinstance(vectors, np.ndarray):
        return np.concatenate([vectors, outside])[rows]
    return sparse.vstack([vectors, outside], format="csr")[rows]
