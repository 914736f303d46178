"""How sure the numbers are: bootstrap over distinct prompts, since the rows of one prompt share its list."""

from typing import NamedTuple

import numpy as np
import pandas as pd


class Interval(NamedTuple):
    """A mean and its 95 % percentile interval."""

    mean: float
    low: float
    high: float


def _interval(values: pd.Series, prompts: pd.Series, samples: int, seed: int) -> Interval:
    grouped = values.groupby(prompts, sort=True)
    sums, counts = grouped.sum().to_numpy(), grouped.size().to_numpy()
    rng = np.random.default_rng(seed)
    draws = np.empty(samples)
    for sample in range(samples):  # one draw at a time: the memory stays that of one draw
        chosen = rng.integers(len(sums), size=len(sums))
        draws[sample] = sums[chosen].sum() / counts[chosen].sum()
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(float(values.mean()), float(low), float(high))


def mean_interval(scores: pd.DataFrame, metric: str, samples: int, seed: int) -> Interval:
    """Return a metric's mean over the rows, with its interval."""
    return _interval(scores[metric], scores["prompt_id"], samples, seed)


def paired_interval(scores: pd.DataFrame, baseline: pd.DataFrame, metric: str, samples: int, seed: int) -> Interval:
    """Return the mean difference `scores - baseline` of a metric over the same rows, with its interval.

    Raises `ValueError` where the two tables are not of the same rows in the same order.
    """
    if scores["prompt_id"].tolist() != baseline["prompt_id"].tolist():
        raise ValueError("the two systems were not scored on the same rows in the same order")
    return _interval(scores[metric] - baseline[metric], scores["prompt_id"], samples, seed)
