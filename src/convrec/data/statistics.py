"""Statistics of the splits and the catalog: the numbers and plot tables of the data report."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from convrec.data.catalog import Catalog
from convrec.data.conversations import transcript
from convrec.data.row_files import Rows, first_of_each
from convrec.data.unspaced import num_words

CURVE_POINTS = 100

Table = list[dict[str, Any]]


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


def _by_month(rows: Rows) -> dict[str, dict[str, int]]:
    """Return the rows and the distinct prompts of each month, in order; rows without a date are in none."""
    dates, prompts = rows["date"].fillna(""), pd.Series(pd.factorize(rows["prompt_id"])[0])
    months = prompts[(dates != "").to_numpy(bool)].groupby(dates.str.slice(0, 7)).agg(["size", "nunique"])
    return {str(row.Index): {"rows": int(row.size), "prompts": int(row.nunique)} for row in months.itertuples()}


def _measures(rows: Rows) -> dict[str, np.ndarray]:
    """Return turns and words of each distinct prompt's conversation, and ground truth and seen titles of each row."""
    conversations = rows[first_of_each(rows["prompt_id"])].values("messages")
    values = [(len(messages), num_words(transcript(messages))) for (messages,) in conversations]
    measures = dict(zip(("turns", "words"), np.array(values, dtype=np.int64).reshape(-1, 2).T, strict=True))
    for name in ("groundtruth", "seen_titles"):
        sizes = (pc.list_value_length(table[name]).to_numpy() for table in rows.tables(name))
        measures[name] = np.concatenate([np.zeros(0, dtype=np.int64), *sizes])
    return measures


def quantiles(values: np.ndarray) -> dict[str, float]:
    """Return minimum, median, mean, 95th percentile (linear between values) and maximum of at least one integer."""
    low, median, p95, high = np.percentile(values, [0, 50, 95, 100]).tolist()
    return {"min": int(low), "median": median, "mean": float(values.mean()), "p95": p95, "max": int(high)}


def _mentions(rows: Rows, catalog: Catalog) -> tuple[np.ndarray, int]:
    """Return how often each item is ground truth, and how many entries lie outside the catalog. Shape: (C,)."""
    named = (catalog.find(truth["title"], truth["year"]) for (own,) in rows.values("groundtruth") for truth in own)
    found = np.fromiter((-1 if index is None else index for index in named), np.int32)
    return np.bincount(found[found >= 0], minlength=len(catalog)), int((found < 0).sum())


def gini(counts: np.ndarray) -> float:
    """Return the Gini coefficient of non-negative counts: 0 where all are equal, 1 - 1/C where one item has all.

    Half the mean absolute difference of two counts in units of their mean; 0 where there is nothing to share.
    Shape: (C,).
    """
    ranks = np.arange(1, len(counts) + 1)
    return _share(((2 * ranks - len(counts) - 1) * np.sort(counts)).sum(), len(counts) * counts.sum())


def popularity_curve(counts: np.ndarray) -> Table:
    """Return by share of the items, from the most liked, the share of the mentions that they take. Shape: (C,)."""
    taken = np.concatenate([[0], np.cumsum(np.sort(counts)[::-1])])
    numbers = np.unique(np.linspace(0, len(counts), CURVE_POINTS + 1).round().astype(int)).tolist()
    return [{"items": number / len(counts), "mentions": _share(taken[number], taken[-1])} for number in numbers]


def describe(splits: Mapping[str, Rows], catalog: Catalog) -> tuple[dict[str, Any], dict[str, Table]]:
    """Return the metrics and plots, by name, of the canonical rows of non-empty splits, one of which is `train`.

    Metrics: `months` (rows and prompts by split and month, none where undated); `quantiles` by measure and split, where
    turns and words are of distinct prompts, ground-truth items and seen titles of rows; `popularity` of the catalog's
    items in train's ground truth; `coverage`, the share of them that occurs there; `warm`, by held-out split, the share
    of the mentions of catalog items whose item occurs there, the others being cold; `outside_catalog`, by split, the
    share of the ground truth that names no item. A share of nothing is 0.

    Plots: `rows_by_month` (month, split, rows), `catalog_popularity` (see `popularity_curve`).
    """
    months = {name: _by_month(rows) for name, rows in splits.items()}
    measures = {name: _measures(rows) for name, rows in splits.items()}
    found = {name: _mentions(rows, catalog) for name, rows in splits.items()}
    liked = found["train"][0]
    most_liked = np.sort(liked)[::-1]
    metrics = {
        "months": months,
        "quantiles": {
            name: {split: quantiles(of[name]) for split, of in measures.items()} for name in measures["train"]
        },
        "popularity": {
            "gini": gini(liked),
            "top_1_percent": _share(most_liked[: max(1, round(0.01 * len(liked)))].sum(), liked.sum()),
            "top_10_percent": _share(most_liked[: max(1, round(0.1 * len(liked)))].sum(), liked.sum()),
        },
        "coverage": _share((liked > 0).sum(), len(liked)),
        "warm": {
            name: _share(counts[liked > 0].sum(), counts.sum())
            for name, (counts, _) in found.items()
            if name != "train"
        },
        "outside_catalog": {name: _share(outside, counts.sum() + outside) for name, (counts, outside) in found.items()},
    }
    plots = {
        "rows_by_month": [
            {"month": month, "split": name, "rows": counts["rows"]}
            for name, by_month in months.items()
            for month, counts in by_month.items()
        ],
        "catalog_popularity": popularity_curve(liked),
    }
    return metrics, plots
