"""Metrics beyond accuracy: novelty, diversity, popularity, coverage.

The items of a list are catalog indices: the distinct ones among its first N lines with an unseen catalog item.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, truth_items
from convrec.data.parsing import read_list
from convrec.data.wish_reader import wishes_of


def mentions(rows: Iterable[Row], catalog: Catalog) -> np.ndarray:
    """Return how often each catalog item is in the ground truth of the rows. Shape: (C,)."""
    counts = np.zeros(len(catalog), dtype=np.int64)
    for row in rows:
        np.add.at(counts, truth_items(row, catalog), 1)
    return counts


def recommended(text: str, seen_titles: Sequence[str], catalog: Catalog, num_ranks: int) -> list[int]:
    """Return the items of a written list: those of its first N lines with an unseen catalog item, each once."""
    seen, items = catalog.indices_of_titles(seen_titles), read_list(text, catalog).items
    return list(dict.fromkeys([index for index in items if index is not None and index not in seen][:num_ranks]))


def self_information(counts: np.ndarray) -> np.ndarray:
    """Return -log2 p(item) in bits, with p = (mentions + 1) / (all mentions + C). Shape: (C,).

    Zhou et al., "Solving the apparent diversity-accuracy dilemma of recommender systems" (PNAS, 2010).
    """
    return -np.log2((counts + 1) / (counts.sum() + len(counts)))


def diversity(lists: Sequence[Sequence[int]], vectors: sparse.csr_array) -> np.ndarray:
    """Return the mean of 1 - cosine over the pairs of each list's items; NaN for fewer than two items. Shape: (B,).

    This is one minus the intra-list similarity of Ziegler et al., "Improving recommendation lists through topic
    diversification" (WWW, 2005). `vectors` holds one vector for each item, of unit length or zero; the cosine to a zero
    vector is 0. Shape: vectors (C, D).
    """
    lengths = np.array([len(items) for items in lists])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    columns = np.array([item for items in lists for item in items], dtype=np.int64)
    chosen = sparse.csr_array((np.ones(len(columns)), columns, starts), shape=(len(lists), vectors.shape[0]))
    norms = np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel()
    sums = chosen @ vectors
    pairs = lengths * (lengths - 1)
    cosines = np.asarray(sums.multiply(sums).sum(axis=1)).ravel() - chosen @ norms  # sum over ordered pairs
    return np.where(pairs > 0, 1 - cosines / np.maximum(pairs, 1), np.nan)


def coverage(lists: Iterable[Sequence[int]], num_items: int) -> float:
    """Return the share of the catalog's items that are in at least one list (Ge et al., RecSys 2010)."""
    return len({item for items in lists for item in items}) / num_items


def concentration(lists: Iterable[Sequence[int]]) -> float:
    """Return the share of the lists whose first item is one of the ten commonest first items; NaN without an item."""
    firsts = Counter(items[0] for items in lists if items)
    return sum(number for _, number in firsts.most_common(10)) / firsts.total() if firsts else float("nan")


def broken_wishes(lists: Mapping[str, Sequence[int]], rows: Iterable[Row], catalog: Catalog) -> float:
    """Return the share of the conversations with exclusions whose list has an excluded item; 0 without exclusions.

    An empty list does not count; NaN if all are empty.
    """
    broken, num_empty = [], 0
    for row in rows:
        kept = [wish for wish in wishes_of(row, catalog) if wish.state == "kept" and wish.against]
        allowed = [wish.fits for wish in kept if wish.fits is not None]
        if allowed and not (items := lists[row["prompt_id"]]):
            num_empty += 1
        elif allowed:
            broken.append(not all(fits[item] for fits in allowed for item in items))
    return float(np.mean(broken)) if broken else np.nan if num_empty else 0.0


def truth_popularity(rows: Sequence[Row], counts: np.ndarray, catalog: Catalog) -> np.ndarray:
    """Return the mean training mentions of each row's ground truth, 0 for items outside the catalog. Shape: (B,)."""
    means = []
    for row in rows:
        means.append(counts[truth_items(row, catalog)].sum() / max(1, len(row["groundtruth"])))
    return np.array(means)


def describe_lists(
    lists: Mapping[str, Sequence[int]],
    rows: Sequence[Row],
    counts: np.ndarray,
    vectors: sparse.csr_array,
    catalog: Catalog,
) -> pd.DataFrame:
    """Return one row for each test row.

    `lists` holds items by prompt, `counts` the mentions in training. Columns: `novelty`, the mean `self_information` of
    the list's items; `diversity`; `popularity` and `truth_popularity`, the mean mentions of the list's items and of
    the ground truth. For an empty list, all columns but `truth_popularity` are NaN.
    """
    information = self_information(counts)
    means = [
        (float(information[list(items)].mean()), float(counts[list(items)].mean())) if items else (np.nan, np.nan)
        for items in lists.values()
    ]
    table = pd.DataFrame(means, columns=["novelty", "popularity"], index=list(lists))
    table.insert(1, "diversity", diversity(list(lists.values()), vectors))
    table = table.loc[[row["prompt_id"] for row in rows]].reset_index(drop=True)
    return table.assign(truth_popularity=truth_popularity(rows, counts, catalog))
