"""Remap: from a teacher's written list to a score for every catalog item (method, stage 1.2)."""

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.demonstrations.embedding import Embedder, dense
from convrec.parsing import Entry


def position_weights(
    lists: Sequence[Sequence[Entry]],
) -> tuple[sparse.csr_matrix, list[Entry]]:
    """Return p, 1/sqrt(k) for the item at rank k of each list, and the distinct teacher items (its columns).

    Shape: (len(lists), len(items)), sparse. An item that a list repeats keeps its first rank.
    """
    column: dict[tuple[str, int | None], int] = {}
    items: list[Entry] = []
    rows, columns, weights = [], [], []
    for row, entries in enumerate(lists):
        used = set()
        for rank, entry in enumerate(entries, start=1):
            key = (entry.title, entry.year)
            if key not in column:
                column[key] = len(items)
                items.append(entry)
            if key not in used:
                used.add(key)
                rows.append(row)
                columns.append(column[key])
                weights.append(rank**-0.5)
    return sparse.csr_matrix((weights, (rows, columns)), shape=(len(lists), len(items))), items


def remap_scores(
    lists: Sequence[Sequence[Entry]],
    conversations: Sequence[str],
    catalog: Catalog,
    embedder: Embedder,
    conversation_weight: float,
) -> np.ndarray:
    """Return s_remap = p · (S_item-item + I_ic) + lambda · s_conv-item, float32.

    S_item-item is the cosine of a teacher item's text (its metadata where it is in the catalog, its title else)
    with each catalog item's text; I_ic marks the catalog item that the teacher named.

    Shape: (len(lists), C).
    """
    texts = [item.text() for item in catalog.items]
    catalog_vectors = embedder.embed(texts)
    weights, items = position_weights(lists)
    scores = conversation_weight * dense(embedder.embed(conversations) @ catalog_vectors.T)
    if items:
        teacher_texts = [texts[e.index] if e.index is not None else e.title for e in items]
        named = [(row, e.index) for row, e in enumerate(items) if e.index is not None]
        rows, columns = zip(*named, strict=True) if named else ((), ())
        identity = sparse.csr_matrix((np.ones(len(named)), (rows, columns)), shape=(len(items), len(catalog)))
        similarity = dense(embedder.embed(teacher_texts) @ catalog_vectors.T) + identity
        scores = scores + weights @ np.asarray(similarity)
    return np.asarray(scores, dtype=np.float32)
