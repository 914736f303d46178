"""Reflect: the teacher judges the best candidates in context (method, stage 1.3)."""

from collections.abc import Callable, Sequence

import numpy as np

RATINGS = (-2, -1, 0, 1, 2)


def top_candidates(scores: np.ndarray, top: int) -> np.ndarray:
    """Return each row's `top` best columns, best first; ties go to the lower column. Shape: (B, top)."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :top]


def reflect_scores(
    scores: np.ndarray, top: int, gamma: float, judge: Callable[[int, Sequence[int]], Sequence[int]]
) -> np.ndarray:
    """Return s_reflect = s_remap + gamma · r, where r rates the row's `top` items and is 0 elsewhere.

    `judge(row, columns)` returns a rating of -2..2 for each column. Shape: (B, C), as `scores`.
    """
    result = scores.copy()
    for row, columns in enumerate(top_candidates(scores, min(top, scores.shape[1]))):
        ratings = np.asarray(judge(row, columns.tolist()))
        result[row, columns] += gamma * np.clip(ratings, RATINGS[0], RATINGS[-1])
    return result
