"""Which rows are of one kind, so that systems can be compared on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import named_titles, transcript, truths
from convrec.evaluation.beyond_accuracy import Row, truth_popularity
from convrec.evaluation.comparison import KEYS, mean_intervals

MOST_MENTIONS = 3  # seen titles from which on rows are in one slice


def _popularity_limits(counts: np.ndarray) -> tuple[int, int]:
    """Return the mentions from which on an item is of the tail's and the mid's end, and of the head.

    The items, the most mentioned first, that have the first third of all mentions are the head, the next the mid.
    """
    ordered = np.sort(counts)[::-1]
    taken = np.cumsum(ordered)
    head, mid = (ordered[np.searchsorted(taken, share * taken[-1])] for share in (1 / 3, 2 / 3))
    return int(mid), int(head)


def _by_popularity(rows: Sequence[Row], counts: np.ndarray, catalog: Catalog) -> np.ndarray:
    means, (mid, head) = truth_popularity(rows, counts, catalog), _popularity_limits(counts)
    return np.where(means >= head, "head", np.where(means >= mid, "mid", "tail"))


def _by_words(rows: Sequence[Row]) -> np.ndarray:
    """Return the tercile of each row's conversation, by words; the terciles are those of the distinct prompts."""
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
    """Return the slice of each row by kind of slice, a column each; `counts` are the mentions in training.

    `groundtruth_popularity`: head, mid or tail, by the mean training mentions of the row's ground truth (the items with
    the first third of the mentions are the head). `conversation_words`: terciles of the distinct prompts.
    `mentions`: titles that the conversation names. `month`: of the row's date; absent where no row has one.
    `new_items`: new where one of the ground truth was never liked in training.
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
    """Return by kind of slice and slice: `n_rows`, `n_prompts`, and by system each metric's mean, low, high and n.

    `tables` are the score tables of systems over the rows of `slices`, in that order. A slice without rows is absent.
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
