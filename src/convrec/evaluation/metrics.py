"""Ranking metrics over relevance rows (see `matching.relevance`).

Notation: rel (B, N) with entries 0 or 1; |gt| the number of a row's ground-truth items; K a cutoff, at most N. For the
same relevance, the metrics equal those of ranx (Bassani, ECIR 2022). The relevance itself differs from that of two
lists of ids in ranx: a repeated item takes up a rank but is credited once, seen items are never hits, and the protocol
`evaluation` removes seen and out-of-catalog lines before it counts ranks.

`METRICS` is the one list of an evaluation's scores: score tables compute those with a function, and tables, reports and
policies take their names from there.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


def recall(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return Recall@K = Σ_{k<=K} rel_k / |gt| of each row; 0 for a row without ground truth. Shape: (B,)."""
    return relevance[:, :cutoff].sum(axis=1) / np.maximum(num_truths, 1)


def micro_recall(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return each row's hits at K, over the mean of |gt|: their mean is the share of all ground truth that was hit.

    Shape: (B,).
    """
    return relevance[:, :cutoff].sum(axis=1) / max(num_truths.mean(), 1e-9)


def ndcg(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return NDCG@K of each row: DCG@K divided by the DCG@K of min(|gt|, K) hits at the top. Shape: (B,).

    DCG@K = Σ_{k<=K} rel_k / log2(k+1) (Järvelin and Kekäläinen, 2002).
    """
    discounts = 1 / np.log2(np.arange(2, relevance.shape[1] + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])
    best = ideal[np.minimum(np.maximum(num_truths, 1), cutoff)]
    return (relevance[:, :cutoff] @ discounts[:cutoff]) / best


def hit_rate(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return HitRate@K of each row: 1 if any of the first K ranks is a hit, else 0. Shape: (B,)."""
    return relevance[:, :cutoff].any(axis=1).astype(float)


def reciprocal_rank(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return 1/k of each row's first hit at rank k <= K, 0 without one; the mean over rows is MRR. Shape: (B,)."""
    first = relevance[:, :cutoff]
    return np.where(first.any(axis=1), 1 / (1 + first.argmax(axis=1)), 0.0)


class Metric(NamedTuple):
    """A score of an evaluation: its name, and its function of the ranks.

    The function is called with each cutoff if the name ends with `@`, else with the length of the lists. Scores without
    a function are computed from the lists (`scoring.Quality`, `beyond_accuracy`).
    """

    label: str
    function: Callable[[np.ndarray, np.ndarray, int], np.ndarray] | None = None


METRICS = {
    "recall": Metric("Recall@", recall),
    "micro_recall": Metric("Micro recall@", micro_recall),
    "ndcg": Metric("NDCG@", ndcg),
    "hit_rate": Metric("Hit rate@", hit_rate),
    "mrr": Metric("MRR", reciprocal_rank),
    "in_catalog": Metric("In catalog"),
    "format": Metric("Exact format"),
    "duplicates": Metric("Repeated lines"),
    "seen": Metric("Seen"),
    "length": Metric("Length"),
    "novelty": Metric("Novelty"),
    "diversity": Metric("Diversity"),
    "popularity": Metric("Popularity"),
    "popularity_lift": Metric("Popularity lift"),
    "coverage": Metric("Coverage"),
    "concentration": Metric("Ten commonest first items"),
    "broken_wishes": Metric("Broken exclusions"),
}
RANKED = [name for name, metric in METRICS.items() if metric.label.endswith("@")]  # the metrics that take a cutoff


def metric_label(metric: str) -> str:
    """Return a metric's name as people read it: `NDCG@5` for `ndcg_at_5`, `NDCG` for `ndcg`."""
    name, _, cutoff = metric.partition("_at_")
    return f"{METRICS[name].label if name in METRICS else name.replace('_', ' ').capitalize()}{cutoff}".rstrip("@")


def rank_scores(relevance: np.ndarray, num_truths: np.ndarray, cutoffs: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the scores of each row by every metric of ranks: NAME_at_K for each cutoff, or NAME. Shape: (B,) each."""
    found: dict[str, np.ndarray] = {}
    for name, metric in METRICS.items():
        if metric.function and name in RANKED:
            found |= {f"{name}_at_{k}": metric.function(relevance, num_truths, k) for k in cutoffs}
        elif metric.function:
            found[name] = metric.function(relevance, num_truths, relevance.shape[1])
    return found
