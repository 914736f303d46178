"""Lists that no language model wrote, made of the training split: what a system has to beat."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.conversations import truths
from convrec.demonstrations.embedding import TfidfEmbedder
from convrec.evaluation.beyond_accuracy import mentions
from convrec.parsing import format_list

logger = logging.getLogger(__name__)

Row = dict[str, Any]
_BLOCK = 256  # prompts whose similarities to all of training are in memory at once


def _written(order: Iterable[int], row: Row, catalog: Catalog, size: int) -> str:
    return format_list([str(item) for item in catalog.first_unseen(order, row["seen_titles"], size)])


def baseline_lists(
    names: Iterable[str], train: Sequence[Row], prompts: Sequence[Row], catalog: Catalog, size: int, neighbours: int
) -> dict[str, list[str] | None]:
    """Return each named baseline's lists for the prompts, in the order of the names; None where it has none here."""
    makers: dict[str, Callable[[], list[str] | None]] = {
        "popularity": lambda: popularity_lists(train, prompts, catalog, size),
        "last_month": lambda: last_month_lists(train, prompts, catalog, size),
        "neighbours": lambda: neighbour_lists(train, prompts, catalog, size, neighbours),
    }
    return {name: makers[name]() for name in names}


def popularity_lists(train: Sequence[Row], prompts: Sequence[Row], catalog: Catalog, size: int) -> list[str]:
    """Return for each prompt the items liked most often in training, the seen ones left out."""
    order = np.argsort(-mentions(train, catalog), kind="stable").tolist()
    return [_written(order, row, catalog, size) for row in prompts]


def last_month_lists(train: Sequence[Row], prompts: Sequence[Row], catalog: Catalog, size: int) -> list[str] | None:
    """Return likewise the items liked most often in training's last month, then those liked before.

    None where training has no dates.
    """
    months = [str(row.get("date") or "")[:7] for row in train]
    last = max(months, default="")
    if not last:
        return None
    recent = mentions((row for row, month in zip(train, months, strict=True) if month == last), catalog)
    order = np.lexsort((-mentions(train, catalog), -recent)).tolist()
    return [_written(order, row, catalog, size) for row in prompts]


def _words(row: Row) -> str:
    """Return what was said: without the roles, which all conversations share."""
    return "\n".join(message["content"] for message in row["messages"])


def _liked(train: Sequence[Row], catalog: Catalog) -> tuple[list[str], sparse.csr_array]:
    """Return the distinct training conversations, and how often each liked an item. Shape: (conversations, C)."""
    places: dict[str, int] = {}
    cells = []
    for row in train:
        place = places.setdefault(_words(row), len(places))
        found = (catalog.find(truth.title, truth.year) for truth in truths(row))
        cells += [(place, index) for index in found if index is not None]
    rows, columns = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    liked = sparse.csr_array((np.ones(len(cells)), (rows, columns)), shape=(len(places), len(catalog)))
    return list(places), liked


def neighbour_lists(
    train: Sequence[Row], prompts: Sequence[Row], catalog: Catalog, size: int, neighbours: int
) -> list[str]:
    """Return for each prompt the items that the nearest training conversations liked, the seen ones left out.

    The `neighbours` conversations of the highest TF-IDF cosine vote for the items that they liked, each with its
    cosine; equal votes go by popularity in training. Neighbour voting as in NBCRS (Manzoor and Jannach, "Towards
    retrieval-based conversational recommendation", Information Systems, 2022), which has sentence embeddings.
    """
    texts, liked = _liked(train, catalog)
    embedder = TfidfEmbedder(texts)
    vectors = embedder.embed_conversations(texts).T.tocsr()
    places = np.empty(len(catalog), dtype=np.int64)
    places[np.argsort(-mentions(train, catalog), kind="stable")] = np.arange(len(catalog))
    number = min(neighbours, len(texts))
    lists: list[str] = []
    for start in range(0, len(prompts), _BLOCK):
        block = prompts[start : start + _BLOCK]
        asked = embedder.embed_conversations([_words(row) for row in block])
        cosines = (asked @ vectors).toarray()
        nearest = np.argpartition(-cosines, number - 1, axis=1)[:, :number]
        weights = np.zeros_like(cosines)
        np.put_along_axis(weights, nearest, np.take_along_axis(cosines, nearest, axis=1), axis=1)
        votes = (sparse.csr_array(weights) @ liked).toarray()
        orders = (np.lexsort((places, -row_votes)).tolist() for row_votes in votes)
        lists += [_written(order, row, catalog, size) for order, row in zip(orders, block, strict=True)]
        logger.info("neighbours: %d of %d prompts", len(lists), len(prompts))
    return lists
