"""Hits by rank."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, truths
from convrec.data.matching import relevance
from convrec.evaluation.comparison import mean_intervals


def hits_by_rank(texts: Mapping[str, str], rows: Sequence[Row], catalog: Catalog, num_ranks: int) -> np.ndarray:
    """Return the relevance of each rank under the protocol `evaluation`. Shape: (B, N).

    `texts` holds one list for each prompt id.
    """
    hits = [
        relevance(texts[r["prompt_id"]], truths(r), r["seen_titles"], catalog, num_ranks, "evaluation") for r in rows
    ]
    return np.array(hits, dtype=float).reshape(-1, num_ranks)


def rank_intervals(hits: np.ndarray, persons: Sequence[str], samples: int, seed: int) -> pd.DataFrame:
    """Return the share of rows with a hit at each rank, with its 95 % interval: columns rank, mean, low, high.

    The bootstrap draws persons (see `comparison`). Shape: hits (B, N).
    """
    frame = pd.DataFrame(hits, columns=[str(rank + 1) for rank in range(hits.shape[1])]).assign(person=persons)
    found = mean_intervals(frame, list(frame.columns.drop("person")), samples, seed)
    return pd.DataFrame(
        [{"rank": int(rank), "mean": i.mean, "low": i.low, "high": i.high} for rank, i in found.items()]
    )
