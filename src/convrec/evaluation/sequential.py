"""Tests of online experiments that may be looked at after every answer: confidence sequences and always-valid p-values.

A fixed-sample interval that is looked at again and again excludes the truth sooner or later. A confidence sequence
covers it at all times at once, with probability 1 - alpha, so an experiment may stop whenever the sequence has decided
(Howard et al., 2021, arXiv 1810.08240). The p-value is the smallest alpha whose sequence has excluded "no difference"
up to now (Johari et al., 2017, arXiv 1512.04922).

The answers of one user are correlated, and the tests account for it: the variance is that of the users' sums. What
grows with time is the number of *effective* answers, the number of answers of different users that would give the same
precision. Sums whose parts are positively correlated cross a boundary less often than sums of independent parts with
the same variances (Slepian's inequality, 1962), so the error rate stays below alpha.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import lambertw

MIN_USERS = 20  # in each arm; the bounds of the A/B test are asymptotic, and infinite before
PLANNED = 500  # effective answers at which the A/B test's sequence is tightest
MAX_LOOKS = 200


class Look(NamedTuple):
    """An experiment after its first `answers` answers.

    `mean` is the estimate, `low` and `high` the bounds of its confidence sequence, `p` the always-valid p-value: the
    smallest one so far. `effective` is the number of effective answers.
    """

    answers: int
    users: int
    effective: float
    mean: float
    low: float
    high: float
    p: float


def mixture_scale(alpha: float, planned: float) -> float:
    """Return rho squared, with which the sequence of `normal_margin` is tightest after `planned` answers.

    rho² = (-W(-alpha²/e) - 1) / planned, with the lower branch of Lambert's W (Waudby-Smith et al., 2021, arXiv
    2103.06476, appendix B).
    """
    return float(-lambertw(-(alpha**2) / np.e, k=-1).real - 1) / planned


def normal_margin(effective: float, alpha: float, planned: float = PLANNED) -> float:
    """Return half the width of the asymptotic confidence sequence of a mean, in standard errors of the mean.

    sqrt(2 (t rho² + 1) / (t rho²) log(sqrt(t rho² + 1) / alpha)) after t answers (Waudby-Smith et al., 2021, theorem
    2.2, there multiplied by sigma / sqrt(t)).
    """
    u = effective * mixture_scale(alpha, planned)
    return float(np.sqrt(2 * (u + 1) / u * np.log(np.sqrt(u + 1) / alpha)))


def normal_p(z: float, effective: float, alpha: float, planned: float = PLANNED) -> float:
    """Return the level at which the sequence of `normal_margin` just excludes a mean `z` standard errors away."""
    u = effective * mixture_scale(alpha, planned)
    return float(min(1.0, np.sqrt(u + 1) * np.exp(-(z**2) * u / (2 * (u + 1)))))


def compare_arms(
    users: Sequence[str], in_challenger: Sequence[bool], values: Sequence[float], share: float, alpha: float
) -> list[Look]:
    """Return the looks at an A/B test: the difference of the mean values per answer, challenger minus champion.

    `users`, `in_challenger` and `values` have one entry for each answer, oldest first. There is a look after each
    answer, or `MAX_LOOKS` evenly spaced ones. `share` is the probability that a user is in the challenger's arm. Before
    each arm has `MIN_USERS` users and both have different values, the bounds are infinite and p is 1.
    """
    codes = np.unique(np.asarray(users, dtype=object).astype(str), return_inverse=True)[1]
    arms, outcomes = np.asarray(in_challenger, dtype=bool), np.asarray(values, dtype=float)
    looks: list[Look] = []
    for size in np.unique(np.linspace(1, len(codes), min(len(codes), MAX_LOOKS)).round().astype(int)).tolist():
        one, other = (
            _side(codes[:size][arms[:size] == side], outcomes[:size][arms[:size] == side]) for side in (False, True)
        )
        num_users, mean = one.users + other.users, other.mean - one.mean
        before = looks[-1].p if looks else 1.0
        if min(one.users, other.users) < MIN_USERS or not one.variance or not other.variance:
            looks.append(Look(size, num_users, 0.0, mean, -np.inf, np.inf, before))
            continue
        variance = one.variance + other.variance
        effective = (one.spread / (1 - share) + other.spread / share) / variance
        margin = normal_margin(effective, alpha) * np.sqrt(variance)
        p = normal_p(mean / np.sqrt(variance), effective, alpha)
        looks.append(Look(size, num_users, effective, mean, mean - margin, mean + margin, min(p, before)))
    return looks


class _Side(NamedTuple):
    """One arm: its mean per answer, the variance of that mean over users, the variance of single answers, its users."""

    mean: float
    variance: float
    spread: float
    users: int


def _side(codes: np.ndarray, values: np.ndarray) -> _Side:
    """Return the mean of an arm with the variance of a ratio of the users' sums (Deng et al., 2018, arXiv 1803.06336).

    The users' residuals are r = sum of values - mean * number of answers; the variance is G / (G - 1) * sum(r²) / n²,
    and at least that of independent answers.
    """
    if not len(codes):
        return _Side(float("nan"), 0.0, 0.0, 0)
    mean, spread = float(values.mean()), float(values.var())
    num_users = int(np.count_nonzero(np.bincount(codes)))
    residuals = np.bincount(codes, weights=values - mean)
    variance = num_users / max(1, num_users - 1) * float((residuals**2).sum()) / len(values) ** 2
    return _Side(mean, max(variance, spread / len(values)), spread, num_users)
