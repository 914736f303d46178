"""From written lists to a table of scores, one row for each test row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import truths
from convrec.data.titles import fold
from convrec.evaluation.metrics import ndcg, recall
from convrec.matching import relevance
from convrec.parsing import parse_list


def list_quality(text: str, seen_titles: Sequence[str], catalog: Catalog, num_ranks: int) -> dict[str, float]:
    """Return what one list looks like, whatever the ground truth.

    `in_catalog`: share of its lines that name a catalog item; `format`: 1 where it has exactly N lines, each of
    them a catalog line to the letter; `duplicates` and `seen`: share of its lines that repeat one, or name a seen
    title; `length`: its lines. An empty list has `in_catalog` 0.
    """
    entries = [entry for entry in parse_list(text, catalog) if entry is not None]
    named: list[object] = [
        entry.index if entry.index is not None else (fold(entry.title), entry.year) for entry in entries
    ]
    seen, seen_items = {fold(title) for title in seen_titles}, catalog.indices_of_titles(seen_titles)
    lines = text.split("\n")
    exact = len(lines) == num_ranks and all(catalog.index_of_line(line) is not None for line in lines)
    size = max(1, len(entries))
    return {
        "in_catalog": sum(entry.index is not None for entry in entries) / size,
        "format": float(exact),
        "duplicates": (len(named) - len(set(named))) / size,
        "seen": sum(fold(entry.title) in seen or entry.index in seen_items for entry in entries) / size,
        "length": float(len(entries)),
    }


def score_lists(
    texts: Mapping[str, str],
    rows: Sequence[dict[str, Any]],
    catalog: Catalog,
    num_ranks: int,
    cutoffs: Sequence[int],
) -> pd.DataFrame:
    """Return the scores of every row under the protocol `evaluation`; `texts` holds one list a prompt.

    Columns: prompt_id, recall_at_K and ndcg_at_K for each cutoff, and those of `list_quality`.
    """
    hits = np.array(
        [relevance(texts[r["prompt_id"]], truths(r), r["seen_titles"], catalog, num_ranks, "evaluation") for r in rows]
    )
    num_truths = np.array([len(row["groundtruth"]) for row in rows])
    columns: dict[str, Any] = {"prompt_id": [row["prompt_id"] for row in rows]}
    columns |= {f"recall_at_{k}": recall(hits, num_truths, k) for k in cutoffs}
    columns |= {f"ndcg_at_{k}": ndcg(hits, num_truths, k) for k in cutoffs}
    quality = [list_quality(texts[r["prompt_id"]], r["seen_titles"], catalog, num_ranks) for r in rows]
    return pd.concat([pd.DataFrame(columns), pd.DataFrame(quality)], axis=1)


def mean_scores(scores: pd.DataFrame) -> dict[str, float]:
    """Return the mean of every score over the rows."""
    return {name: float(value) for name, value in scores.drop(columns="prompt_id").mean().items()}
