"""Statistics of the splits and the catalog: the numbers and plot tables of the data report."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import transcript

# Lower edges of the bins of conversations' words, each about 1.4 times the one before; the last bin is open.
WORD_BINS = (0, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 7000, 10_000)
MAX_SIZE = 10  # ground-truth items of a row that have a bin of their own
CURVE_POINTS = 100

Table = list[dict[str, Any]]


class Statistics(NamedTuple):
    """`metrics` are nested, of ints and floats; `plots` are tables by name."""

    metrics: dict[str, Any]
    plots: dict[str, Table]


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _by_month(rows: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return the rows and the distinct prompts of each month, in order; rows without a date are in none."""
    dated = rows[rows["date"].fillna("") != ""]
    months = dated["prompt_id"].groupby(dated["date"].str.slice(0, 7)).agg(["size", "nunique"])
    return {str(row.Index): {"rows": int(row.size), "prompts": int(row.nunique)} for row in months.itertuples()}


def _measures(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return turns and words of each distinct prompt's conversation, and ground truth and seen titles of each row."""
    conversations = rows.drop_duplicates("prompt_id")["messages"]
    values = {
        "turns": [len(messages) for messages in conversations],
        "words": [len(transcript(messages).split()) for messages in conversations],
        "groundtruth": [len(truths) for truths in rows["groundtruth"]],
        "seen_titles": [len(titles) for titles in rows["seen_titles"]],
    }
    return {name: np.array(value, dtype=np.int64) for name, value in values.items()}


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Return minimum, median, mean, 95th percentile (linear between values) and maximum of at least one integer."""
    low, median, p95, high = np.percentile(values, [0, 50, 95, 100]).tolist()
    return {"min": int(low), "median": median, "mean": float(values.mean()), "p95": p95, "max": int(high)}


def _mentions(rows: pd.DataFrame, catalog: Catalog) -> tuple[np.ndarray, int]:
    """Return how often each item is ground truth, and how many entries lie outside the catalog. Shape: (C,)."""
    written = Counter((truth["title"], truth["year"]) for truths in rows["groundtruth"] for truth in truths)
    counts, outside = np.zeros(len(catalog), dtype=np.int64), 0
    for (title, year), number in written.items():
        index = catalog.find(title, year)
        if index is None:
            outside += number
        else:
            counts[index] += number
    return counts, outside


def gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient of non-negative counts: 0 where all are equal, 1 - 1/C where one item has all.

    Half the mean absolute difference of two counts in units of their mean; 0 where there is nothing to share.
    Shape: (C,).
    """
    ranks = np.arange(1, len(counts) + 1)
    return _share(((2 * ranks - len(counts) - 1) * np.sort(counts)).sum(), len(counts) * counts.sum())


def _top_share(counts: np.ndarray, share: float) -> float:
    """Return the share of mentions that this share of the items takes, the most liked; at least one item."""
    number = max(1, round(share * len(counts)))
    return _share(np.sort(counts)[-number:].sum(), counts.sum())


def popularity_curve(counts: np.ndarray) -> Table:
    """Return by share of the items, from the most liked, the share of the mentions that they take. Shape: (C,)."""
    taken = np.concatenate([[0], np.cumsum(np.sort(counts)[::-1])])
    numbers = np.unique(np.linspace(0, len(counts), CURVE_POINTS + 1).round().astype(int)).tolist()
    return [{"items": number / len(counts), "mentions": _share(taken[number], taken[-1])} for number in numbers]


def _histogram(values: Mapping[str, np.ndarray]) -> Table:
    """Return the prompts of each split by bin of words (lower edge), from the first bin that has any to the last."""
    edges = [*WORD_BINS, np.iinfo(np.int64).max]
    counts = {name: np.histogram(split, edges)[0] for name, split in values.items()}
    filled = np.flatnonzero(np.sum(list(counts.values()), axis=0))
    return [
        {"words": WORD_BINS[place], **{name: int(count[place]) for name, count in counts.items()}}
        for place in range(filled[0], filled[-1] + 1)
    ]


def _size_shares(values: Mapping[str, np.ndarray]) -> Table:
    """Return the share of each split's rows by the number of ground-truth items, 1 to `MAX_SIZE` or "more"."""
    sizes = [*map(str, range(1, MAX_SIZE + 1)), "more"]
    clipped = {name: np.minimum(split, MAX_SIZE + 1) for name, split in values.items()}
    counts = {name: np.bincount(split, minlength=MAX_SIZE + 2) for name, split in clipped.items()}
    return [
        {"size": size, **{name: _share(count[place], count.sum()) for name, count in counts.items()}}
        for place, size in enumerate(sizes, start=1)
    ]


def _catalog_metrics(found: Mapping[str, tuple[np.ndarray, int]]) -> dict[str, Any]:
    """Return the metrics of the catalog's items in the ground truth, of each split's `_mentions`."""
    liked = found["train"][0]
    held_out = {name: counts for name, (counts, _) in found.items() if name != "train"}
    return {
        "popularity": {
            "gini": gini(liked),
            "top_1_percent": _top_share(liked, 0.01),
            "top_10_percent": _top_share(liked, 0.1),
        },
        "coverage": _share((liked > 0).sum(), len(liked)),
        "warm": {name: _share(counts[liked > 0].sum(), counts.sum()) for name, counts in held_out.items()},
        "outside_catalog": {name: _share(outside, counts.sum() + outside) for name, (counts, outside) in found.items()},
    }


def describe(splits: Mapping[str, pd.DataFrame], catalog: Catalog) -> Statistics:
    """Return the statistics of the canonical rows of non-empty splits, one of which is `train`.

    Metrics: `months` (rows and prompts by split and month, none where undated); `quantiles` by measure and split, where
    turns and words are of distinct prompts, ground-truth items and seen titles of rows; `popularity` of the catalog's
    items in train's ground truth; `coverage`, the share of them that occurs there; `warm`, by held-out split, the share
    of the mentions of catalog items whose item occurs there, the others being cold; `outside_catalog`, by split, the
    share of the ground truth that names no item. A share of nothing is 0.

    Plots: `rows_by_month` (month, split, rows), `conversation_words` (words, and prompts by split),
    `groundtruth_sizes` (size, and share of rows by split), `catalog_popularity` (see `popularity_curve`).
    """
    months = {name: _by_month(rows) for name, rows in splits.items()}
    by_split = {name: _measures(rows) for name, rows in splits.items()}
    measures = {measure: {name: by_split[name][measure] for name in splits} for measure in by_split["train"]}
    found = {name: _mentions(rows, catalog) for name, rows in splits.items()}
    spread = {measure: {name: quantiles(split) for name, split in of.items()} for measure, of in measures.items()}
    plots = {
        "rows_by_month": [
            {"month": month, "split": name, "rows": counts["rows"]}
            for name, by_month in months.items()
            for month, counts in by_month.items()
        ],
        "conversation_words": _histogram(measures["words"]),
        "groundtruth_sizes": _size_shares(measures["groundtruth"]),
        "catalog_popularity": popularity_curve(found["train"][0]),
    }
    return Statistics({"months": months, "quantiles": spread, **_catalog_metrics(found)}, plots)
