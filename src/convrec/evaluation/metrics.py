"""Ranking metrics over relevance rows (see `matching.relevance`).

Notation: rel (B, N) with entries 0 or 1; |gt| the number of a row's ground-truth items; K a cutoff.
"""

import numpy as np


def recall(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return Recall@K = Σ_{k<=K} rel_k / |gt| of each row; 0 for a row without ground truth. Shape: (B,)."""
    return relevance[:, :cutoff].sum(axis=1) / np.maximum(num_truths, 1)


def ndcg(relevance: np.ndarray, num_truths: np.ndarray, cutoff: int) -> np.ndarray:
    """Return NDCG@K of each row: DCG@K over that of min(|gt|, K) hits placed first. Shape: (B,)."""
    discounts = 1 / np.log2(np.arange(2, relevance.shape[1] + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])
    best = ideal[np.minimum(np.maximum(num_truths, 1), cutoff)]
    return (relevance[:, :cutoff] @ discounts[:cutoff]) / best
