"""Slices of the test rows, and the systems' scores on each slice."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import named_titles, transcript, truths
from convrec.data.unspaced import num_words
from convrec.evaluation.beyond_accuracy import Row, truth_popularity
from convrec.evaluation.comparison import KEYS, SAMPLES, mean_intervals

_MENTIONS = ("0", "1", "2", "3_or_more")
KINDS: dict[str, tuple[str, Sequence[str]]] = {  # the title of each kind of slices, and their order
    "groundtruth_popularity": ("Popularity of the ground truth", ("head", "mid", "tail")),
    "conversation_words": ("Length of the conversation", ("short", "medium", "long")),
    "mentions": ("Titles that the conversation names", _MENTIONS),
    "month": ("Month", ()),
    "new_items": ("Ground truth never liked in training", ("known", "new")),
}


def slice_rows(rows: Sequence[Row], counts: np.ndarray, catalog: Catalog) -> pd.DataFrame:
    """Return the slice of each row, with one column for each kind of slice; `counts` are the mentions in training.

    - `groundtruth_popularity`: head, mid or tail by the mean training mentions of the row's ground truth. With items
      ordered by mentions, the head holds the first third of all mentions, the mid the second, the tail the rest.
    - `conversation_words`: terciles over distinct prompts.
    - `mentions`: number of titles that the conversation names.
    - `month`: month of the row's date; absent if no row has a date.
    - `new_items`: "new" if an item of the ground truth was never liked in training.
    """
    ordered = np.sort(counts)[::-1]
    taken = np.cumsum(ordered)
    head, mid = (ordered[np.searchsorted(taken, share * taken[-1])] for share in (1 / 3, 2 / 3))
    popularity = truth_popularity(rows, counts, catalog)
    words = np.array([num_words(transcript(row["messages"])) for row in rows])
    distinct = pd.Series(words, index=[row["prompt_id"] for row in rows]).groupby(level=0).first()
    short, medium = np.quantile(distinct, [1 / 3, 2 / 3])
    found = [[catalog.find(*truth) for truth in truths(row)] for row in rows]
    known = [all(index is not None and counts[index] for index in indices) for indices in found]
    columns: dict[str, Any] = {
        "groundtruth_popularity": np.select([popularity >= head, popularity >= mid], ["head", "mid"], "tail"),
        "conversation_words": np.select([words <= short, words <= medium], ["short", "medium"], "long"),
        "mentions": [_MENTIONS[min(len(named_titles(row)), 3)] for row in rows],
        "new_items": np.where(known, "known", "new"),
    }
    months = [str(row.get("date") or "")[:7] for row in rows]
    if any(months):
        columns["month"] = [month or "undated" for month in months]
    return pd.DataFrame(columns)


def slice_scores(
    tables: Mapping[str, pd.DataFrame], slices: pd.DataFrame, metrics: Sequence[str], seed: int
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
    for kind, (_, order) in KINDS.items():
        if kind not in slices:
            continue
        present = set(slices[kind])
        found[kind] = {}
        for name in [*(label for label in order if label in present), *sorted(present - set(order))]:
            part = wide[slices[kind] == name]
            intervals = mean_intervals(part, columns, SAMPLES, seed)
            systems = {s: {m: intervals[f"{s}/{m}"]._asdict() for m in metrics} for s in tables}
            found[kind][name] = {"n_rows": len(part), "n_prompts": int(part["prompt_id"].nunique()), **systems}
    return found
