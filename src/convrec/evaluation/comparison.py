"""Confidence intervals and p-values. The bootstrap draws persons, because the rows of one person are correlated.

Score tables have a column `person`, the person of each row (see `conversations.person_of`). An interval needs at least
`MIN_PERSONS` of them; without it, its ends are None.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, truths
from convrec.data.matching import relevance

KEYS = ["prompt_id", "person"]  # the columns of a score table that are not scores
SAMPLES = 2000  # of an interval or p-value in the evaluation, the report and a promotion
MIN_PERSONS = 6  # with fewer, the p-value of no sign flip is below 5 %, and intervals may have no width
_BLOCK = 2_000_000  # weights in memory at once, 8 bytes each
_ROUNDING = 1e-9  # relative tolerance: sums of the same numbers in another order count as equal


class Interval(NamedTuple):
    """A mean over `n` rows, and its 95 % percentile interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Gain(NamedTuple):
    """A mean difference over `n` rows, its 95 % interval, and the p-value of no difference."""

    mean: float
    low: float | None
    high: float | None
    n: int
    p: float


def _draws(num_persons: int, samples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often each person is drawn in each sample, in blocks of samples. Shape: (samples, persons)."""
    rng = np.random.default_rng(seed)
    size = max(1, _BLOCK // num_persons)
    for start in range(0, samples, size):
        counts = np.empty((min(size, samples - start), num_persons))
        for row in counts:
            drawn = rng.integers(num_persons, size=num_persons, dtype=np.int32)
            row[:] = np.bincount(drawn, minlength=num_persons)
        yield counts


def _person_sums(persons: pd.Series, values: np.ndarray) -> np.ndarray:
    """Return the sums of each column over the rows of each person. Shape: (persons, columns)."""
    codes, names = pd.factorize(persons)
    if len(names) == len(values):
        return values
    sums = [np.bincount(codes, weights=column, minlength=len(names)) for column in values.T]
    return np.stack(sums, axis=1)


def _ratios(numerators: np.ndarray, denominators: np.ndarray, samples: int, seed: int) -> np.ndarray:
    """Return Σ numerator / Σ denominator of each bootstrap sample of the persons, NaN for 0 / 0.

    Shape: numerators (persons, metrics), denominators likewise or (persons, 1), result (samples, metrics).
    """
    width, both = numerators.shape[1], np.hstack([numerators, denominators])
    sums = np.vstack([counts @ both for counts in _draws(len(both), samples, seed)])
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[:, :width] / sums[:, width:]


def _interval(mean: float, low: float, high: float, rows: int, persons: int) -> Interval:
    ends: tuple[float | None, float | None] = (float(low), float(high)) if persons >= MIN_PERSONS else (None, None)
    return Interval(float(mean), *ends, rows)


def mean_intervals(scores: pd.DataFrame, metrics: Sequence[str], samples: int, seed: int) -> dict[str, Interval]:
    """Return each metric's mean over the rows where it is not NaN, with its interval.

    Persons are drawn with replacement, each with all its rows (a cluster bootstrap; Efron and Tibshirani, 1993). All
    metrics use the same draws. A metric that is NaN in all rows is left out.
    """
    frame = scores[list(metrics)].to_numpy(dtype=float)
    there = ~np.isnan(frame)
    metrics = [metric for metric, some in zip(metrics, there.any(axis=0), strict=True) if some]
    frame, there = frame[:, there.any(axis=0)], there[:, there.any(axis=0)]
    values = np.where(there, frame, 0.0)
    if there.all():
        there = there[:, :1]  # all metrics have the same rows
    sums, counts = (_person_sums(scores["person"], part) for part in (values, there.astype(float)))
    low, high = np.nanquantile(_ratios(sums, counts, samples, seed), [0.025, 0.975], axis=0)
    sizes, persons = (np.broadcast_to(part.sum(axis=0), len(metrics)) for part in (there, counts > 0))
    means = values.sum(axis=0) / sizes
    return {
        metric: _interval(means[i], low[i], high[i], int(sizes[i]), int(persons[i])) for i, metric in enumerate(metrics)
    }


def mean_interval(scores: pd.DataFrame, metric: str, samples: int, seed: int) -> Interval:
    """Return a metric's mean over the rows, with its interval (see `mean_intervals`)."""
    return mean_intervals(scores, [metric], samples, seed)[metric]


def ratio_interval(scores: pd.DataFrame, numerator: str, denominator: str, samples: int, seed: int) -> Interval | None:
    """Return the ratio of two columns' means over the rows that have both, with its interval.

    Returns None if the sum of the denominators is 0.
    """
    rows = scores[["person", numerator, denominator]].dropna()
    over, under = rows[[numerator]].to_numpy(dtype=float), rows[[denominator]].to_numpy(dtype=float)
    if under.sum() == 0:
        return None
    ratios = _ratios(_person_sums(rows["person"], over), _person_sums(rows["person"], under), samples, seed)
    low, high = np.nanquantile(ratios[np.isfinite(ratios)], [0.025, 0.975])
    return _interval(over.sum() / under.sum(), low, high, len(rows), rows["person"].nunique())


def _sign_flip_p(differences: np.ndarray, samples: int, seed: int) -> float:
    """Return the two-sided p-value of a sign-flip test of the persons' differences. Shape: (persons,).

    p = (1 + number of samples at least as far from 0 as the observed sum) / (1 + samples); Phipson and Smyth, 2010.
    """
    rng = np.random.default_rng(seed)
    seen = abs(differences.sum()) - _ROUNDING * np.abs(differences).sum()
    size, extreme = max(1, _BLOCK // len(differences)), 0
    for start in range(0, samples, size):
        signs = rng.integers(2, size=(min(size, samples - start), len(differences)), dtype=np.int8)
        sums = 2 * (signs.astype(float) @ differences) - differences.sum()
        extreme += int((np.abs(sums) >= seen).sum())
    return (1 + extreme) / (1 + samples)


def paired_interval(scores: pd.DataFrame, baseline: pd.DataFrame, metric: str, samples: int, seed: int) -> Gain:
    """Return the mean difference `scores - baseline` of a metric over the same rows, with interval and p-value.

    The p-value is that of a paired permutation test: under the null hypothesis, the two systems' lists for a person
    can be exchanged. Raises `ValueError` if the tables do not have the same rows in the same order.
    """
    if scores[KEYS].values.tolist() != baseline[KEYS].values.tolist():
        raise ValueError("the two systems were not scored on the same rows in the same order")
    rows = pd.DataFrame({"person": scores["person"], metric: scores[metric] - baseline[metric]})
    sums = _person_sums(rows["person"], rows[[metric]].to_numpy(dtype=float))[:, 0]
    return Gain(*mean_interval(rows, metric, samples, seed), p=_sign_flip_p(sums, samples, seed))


def hits_by_rank(texts: Mapping[str, str], rows: Sequence[Row], catalog: Catalog, num_ranks: int) -> np.ndarray:
    """Return the relevance of each rank under the protocol `evaluation`, of one list for each prompt. Shape: (B, N)."""
    lists = (
        relevance(texts[row["prompt_id"]], truths(row), row["seen_titles"], catalog, num_ranks, "evaluation")
        for row in rows
    )
    return np.array(list(lists), dtype=float).reshape(-1, num_ranks)


def rank_intervals(hits: np.ndarray, persons: Sequence[str], seed: int) -> pd.DataFrame:
    """Return the share of rows with a hit at each rank: columns rank, mean, low, high, n. Shape: hits (B, N)."""
    frame = pd.DataFrame(hits, columns=range(1, hits.shape[1] + 1))
    found = mean_intervals(frame.assign(person=persons), list(frame), SAMPLES, seed)
    return pd.DataFrame([{"rank": rank, **interval._asdict()} for rank, interval in found.items()])
