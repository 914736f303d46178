"""Slices of the test rows, and the systems' scores on each slice."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import named_titles, transcript, truths
from convrec.evaluation.beyond_accuracy import Row, truth_popularity
from convrec.evaluation.comparison import KEYS, mean_intervals

MOST_MENTIONS = 3  # rows that name at least this many titles are in one slice


def _popularity_limits(counts: np.ndarray) -> tuple[int, int]:
    """Return the smallest number of mentions of a mid item and of a head item.

    With items ordered by mentions, the head holds the first third of all mentions, the mid the second, the tail the
    rest.
    """
    ordered = np.sort(counts)[::-1]
    taken = np.cumsum(ordered)
    head, mid = (ordered[np.searchsorted(taken, share * taken[-1])] for share in (1 / 3, 2 / 3))
    return int(mid), int(head)


def _by_popularity(rows: Sequence[Row], counts: np.ndarray, catalog: Catalog) -> np.ndarray:
    means, (mid, head) = truth_popularity(rows, counts, catalog), _popularity_limits(counts)
    return np.where(means >= head, "head", np.where(means >= mid, "mid", "tail"))


def _by_words(rows: Sequence[Row]) -> np.ndarray:
    """Return the tercile of each row's conversation by words; terciles are computed over distinct prompts."""
    words = np.array([len(transcript(row["messages"]).split()) for row in rows])
    distinct = pd.Series(words, index=[row["prompt_id"] for row in rows]).groupby(level=0).first()
    short, medium = np.quantile(distinct, [1 / 3, 2 / 3])
    return np.where(words <= short, "short", np.where(words <= medium, "medium", "long"))


def _by_mentions(rows: Sequence[Row]) -> np.ndarray:
    names = [*map(str, range(MOST_MENTIONS)), f"{MOST_MENTIONS}_or_more"]
    return np.array([names[min(len(named_titles(row)), MOST_MENTIONS)] for row in rows])


def _by_news(rows: Sequence[Row], counts: np.ndarray, catalog: Catalog) -> np.ndarray:
    def liked(title: str, year: int | None) -> bool:
        index = catalog.find(title, year)
        return index is not None and bool(counts[index])

    return np.array(["known" if all(liked(*truth) for truth in truths(row)) else "new" for row in rows])


ORDER = {
    "groundtruth_popularity": ("head", "mid", "tail"),
    "conversation_words": ("short", "medium", "long"),
    "mentions": (*map(str, range(MOST_MENTIONS)), f"{MOST_MENTIONS}_or_more"),
    "month": (),
    "new_items": ("known", "new"),
}


def slice_rows(rows: Sequence[Row], counts: np.ndarray, catalog: Catalog) -> pd.DataFrame:
    """Return the slice of each row, with one column for each kind of slice; `counts` are the mentions in training.

    - `groundtruth_popularity`: head, mid or tail by the mean training mentions of the row's ground truth. The most
      mentioned items that together have a third of all mentions are the head.
    - `conversation_words`: terciles over distinct prompts.
    - `mentions`: number of titles that the conversation names.
    - `month`: month of the row's date; absent if no row has a date.
    - `new_items`: "new" if an item of the ground truth was never liked in training.
    """
    columns = {
        "groundtruth_popularity": _by_popularity(rows, counts, catalog),
        "conversation_words": _by_words(rows),
        "mentions": _by_mentions(rows),
        "new_items": _by_news(rows, counts, catalog),
    }
    months = [str(row.get("date") or "")[:7] for row in rows]
    if any(months):
        columns["month"] = np.array([month or "undated" for month in months])
    return pd.DataFrame(columns)


def slice_scores(
    tables: Mapping[str, pd.DataFrame], slices: pd.DataFrame, metrics: Sequence[str], samples: int, seed: int
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return for each kind and slice: `n_rows`, `n_prompts`, and for each system the mean, low, high and n by metric.

    `tables` holds the systems' score tables over the rows of `slices`, in the same order. Slices without rows are
    absent.
    """
    keys = next(iter(tables.values()))[KEYS]
    wide = pd.DataFrame({f"{name}/{m}": table[m] for name, table in tables.items() for m in metrics})
    columns = list(wide)
    wide[KEYS] = keys
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, order in ORDER.items():
        if kind not in slices:
            continue
        present = set(slices[kind])
        found[kind] = {}
        for name in [*(label for label in order if label in present), *sorted(present - set(order))]:
            part = wide[slices[kind] == name]
            intervals = mean_intervals(part, columns, samples, seed)
            systems = {s: {m: intervals[f"{s}/{m}"]._asdict() for m in metrics} for s in tables}
            found[kind][name] = {"n_rows": len(part), "n_prompts": int(part["prompt_id"].nunique()), **systems}
    return found
