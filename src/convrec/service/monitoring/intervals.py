"""95 % intervals of what the service did. Answers of one person are correlated, so standard errors are by person."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Z = 1.959964  # the 97.5 % quantile of the normal distribution


class Span(NamedTuple):
    """A figure, the ends of its 95 % interval, and the size of its sample."""

    figure: float
    low: float
    high: float
    n: int


def wilson(count: int, n: int) -> Span:
    """Return a share with the interval of Wilson (JASA, 1927), which is also valid near 0 and 1."""
    share, spread = count / n, Z**2 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * (share * (1 - share) / n + spread / (4 * n)) ** 0.5
    return Span(share, max(0.0, middle - half), min(1.0, middle + half), n)


def clustered_error(influence: np.ndarray, persons: Sequence[str] | np.ndarray) -> float:
    """Return the standard error of a mean whose terms, with mean 0, are `influence`; those of a person are added first.

    The sandwich estimator of Liang and Zeger (Biometrika, 1986) without covariates. Shape: (n,).
    """
    codes = np.unique(np.asarray(persons), return_inverse=True)[1]
    return float(np.sqrt((np.bincount(codes, weights=influence) ** 2).sum()) / len(influence))


def mean_span(values: np.ndarray, persons: Sequence[str] | np.ndarray) -> Span:
    """Return a mean with its interval. Shape: (n,)."""
    mean = float(values.mean())
    half = Z * clustered_error(values - mean, persons)
    return Span(mean, mean - half, mean + half, len(values))


def fall_span(now: Span, before: Span) -> Span:
    """Return the relative fall 1 - now / before of two independent means, by the delta method; n is that of `now`."""
    ratio = now.figure / before.figure
    errors = [(span.high - span.low) / (2 * Z * before.figure) for span in (now, before)]
    half = Z * float(np.hypot(errors[0], ratio * errors[1]))
    return Span(1 - ratio, 1 - ratio - half, 1 - ratio + half, now.n)


def quantile_span(values: np.ndarray, share: float) -> Span:
    """Return a quantile with the interval between two order statistics (Conover, 1999, section 3.2). Shape: (n,)."""
    ordered, n = np.sort(values), len(values)
    half = Z * (n * share * (1 - share)) ** 0.5
    places = [int(np.clip(np.floor(n * share + sign * half), 0, n - 1)) for sign in (-1, 1)]
    return Span(float(np.quantile(ordered, share)), float(ordered[places[0]]), float(ordered[places[1]]), n)
