"""The test of online experiments, which may be read at any time: a sequential re-randomization test.

The arm of each user is drawn alone, so the draw can be repeated: if the challenger changes nothing, the statistic of
the real arms is exchangeable with those of drawn arms, whatever users answer, how often they ask, and how unequal the
arms are. Answers of one user are summed, and the user moves as a whole (Plamadeala and Rosenberger, Annals of
Statistics 40(1), 2012: sequential monitoring with conditional randomization tests).

The data are analysed after fixed numbers of answers, so that later answers change no earlier analysis. Each analysis
spends 4.5 % of what is left of the level alpha (Lan and DeMets, Biometrika 70(3), 1983): it rejects those draws of arms
that are the most extreme of all that were not rejected before, and "no difference" if the real arms are among them.
Never more than a share alpha of all draws is rejected, so the analyses together find what is not there with a
probability of at most alpha. The p-value is the smallest level, of some, that rejects the real arms.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import betaln, xlog1py, xlogy
from scipy.stats import rankdata

MIN_USERS = 20  # in each arm; before, an analysis decides nothing
DRAWS = 9_999  # of the arms; the test is exact with any number
FIRST_LOOK = 100  # answers at the first analysis
_PER_DECADE = 20  # analyses: 100, 112, 126, ..., 1000, ... answers
_LEFT = 10 ** (-1 / 50)  # of the level, after an analysis; a tenth of it is left after 50 of them
_LEVELS = np.geomspace(0.001, 1, 31)  # of p-values
_BLOCK = 4_000_000  # drawn arms in memory at once, 8 bytes each
_DIGITS = 9  # of a statistic; equal arms in another order of sums have equal statistics


class Look(NamedTuple):
    """An analysis of the first `answers` answers.

    `mean` is the estimate, `low` and `high` the bounds of its confidence sequence, `p` the always-valid p-value: the
    smallest one so far.
    """

    answers: int
    users: int
    mean: float
    low: float
    high: float
    p: float


def look_sizes(num_answers: int) -> list[int]:
    """Return the numbers of answers at which so many answers are analysed; more answers only add to them."""
    sizes: list[int] = []
    while (size := round(FIRST_LOOK * 10 ** (len(sizes) / _PER_DECADE))) <= num_answers:
        sizes.append(size)
    return sizes


def compare_arms(
    users: Sequence[str],
    in_challenger: Sequence[bool],
    values: Sequence[float] | None,
    share: float,
    alpha: float,
) -> list[Look]:
    """Return the analyses of an A/B test: the difference of the mean values per answer, challenger minus champion.

    `users`, `in_challenger` and `values` have one entry for each answer, oldest first. `share` is the probability that
    a user is in the challenger's arm. While an arm has fewer than `MIN_USERS` users, or all values are equal, the
    bounds are infinite and p stays as it is.

    Without `values`, it is the test of the answers per user, by their ranks, which have no heavy tails (Wilcoxon,
    Biometrics Bulletin 1(6), 1945). `mean` is then the share of pairs, a user of each arm, in which the challenger's
    has more answers, equal numbers counting half, minus one half.
    """
    sizes = look_sizes(len(users))
    if not sizes:
        return []
    codes = pd.factorize(np.asarray(users[: sizes[-1]], dtype=object))[0]  # in the order of their first answers
    outcomes = None if values is None else np.asarray(values, dtype=float)
    parts = [_user_sums(codes[:size], outcomes) for size in sizes]
    numbers = [part.shape[1] for part in parts]
    assigned = np.zeros(numbers[-1], dtype=bool)
    assigned[codes] = np.asarray(in_challenger, dtype=bool)[: len(codes)]
    challengers = _challenger_sums(parts, assigned, share)
    levels = np.unique([*_LEVELS, alpha])
    rejected, looks, low, high = np.zeros((len(levels), DRAWS + 1), dtype=bool), list[Look](), -np.inf, np.inf
    for number, size in enumerate(sizes):
        mean, error, statistics = _statistics(parts[number].sum(axis=1), challengers[number])
        ordered = np.sort(statistics)
        above = len(ordered) - np.searchsorted(ordered, statistics, "left")
        ranks = np.minimum(above, np.searchsorted(ordered, statistics, "right"))  # from the nearer end, 1 and up
        reach = _reach(rejected, ranks, levels * (1 - _LEFT ** (number + 1)) * len(ranks))
        # A level rejects only what all larger ones reject.
        rejected = np.logical_and.accumulate((rejected | (ranks <= reach[:, None]))[::-1])[::-1]
        if rank := int(reach[np.searchsorted(levels, alpha)]):
            drawn = np.sort(statistics[1:])
            if np.isfinite(error):
                low, high = mean - drawn[-rank] * error, mean - drawn[rank - 1] * error
        p = float(levels[rejected[:, 0]].min(initial=1.0))
        looks.append(Look(size, numbers[number], mean, float(low), float(high), p))
    return looks


def _reach(rejected: np.ndarray, ranks: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Return for each level the last rank at which no more draws are rejected, old and new ones, than there is room.

    Shape: rejected (L, D), ranks (D,), room (L,), result (L,).
    """
    order = np.argsort(ranks, kind="stable")
    last = np.searchsorted(ranks[order], ranks[order], "right") - 1  # draws of equal rank are rejected together
    counts = rejected.sum(axis=1, keepdims=True) + np.cumsum(~rejected[:, order], axis=1)[:, last]
    inside = (counts <= room[:, None]).sum(axis=1)
    return np.where(inside > 0, ranks[order][inside - 1], 0)


def split_evidence(in_challenger: Sequence[bool] | np.ndarray, share: float) -> np.ndarray:
    """Return the logarithm of the evidence against the share of the challenger's users, after each user.

    `in_challenger` has an entry for each user, in the order of their appearance. The evidence is the Bayes factor of a
    uniform prior; with the right share, it ever exceeds x with a probability of at most 1 / x (Lindon and Malek, 2020,
    arXiv 2011.03567). Shape: (1 + users,), the first before any user.
    """
    challengers = np.concatenate([[0], np.cumsum(in_challenger)])
    champions = np.arange(len(challengers)) - challengers
    return betaln(1 + challengers, 1 + champions) - xlogy(challengers, share) - xlog1py(champions, -share)


def _user_sums(codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
    """Return for each user: 1, answers n, sum of values s, n², n s and s². Shape: (6, users).

    Without values, a user counts as one answer, whose value is the rank of its number of answers over that of users.
    """
    n = np.bincount(codes).astype(float)
    s = rankdata(n) / len(n) if values is None else np.bincount(codes, weights=values[: len(codes)])
    n = np.ones_like(n) if values is None else n
    return np.stack([np.ones_like(n), n, s, n * n, n * s, s * s])


def _challenger_sums(parts: Sequence[np.ndarray], assigned: np.ndarray, share: float) -> list[np.ndarray]:
    """Return the sums of `_user_sums` over the challenger's users, for the real arms and the drawn ones, by analysis.

    A user's drawn arms do not depend on the users who come later. Shape: (6, 1 + DRAWS) each.
    """
    rng = np.random.default_rng(0)
    sums, block = [np.zeros((6, DRAWS + 1)) for _ in parts], max(1, _BLOCK // DRAWS)
    for start in range(0, len(assigned), block):
        own = assigned[start : start + block, None]
        drawn = np.hstack([own, rng.random((len(own), DRAWS), dtype=np.float32) < share]).astype(float)
        for total, part in zip(sums, parts, strict=True):
            there = part[:, start : start + block]
            total += there @ drawn[: there.shape[1]]
    return sums


def _statistics(everyone: np.ndarray, challenger: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return the observed difference of means, its standard error, and the differences over their standard errors.

    The first column of `challenger` is the observed one. The variance of a mean per answer is that of a ratio of the
    users' sums (Deng et al., 2018, arXiv 1803.06336): G / (G - 1) * sum(r²) / n² with the residuals r = s - mean * n of
    G users. Where it is not known, the error is infinite and the statistic 0. Shape: (6,), (6, D).
    """
    means, variances, enough = [], [], np.ones(challenger.shape[1], dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        for users, n, s, nn, ns, ss in (challenger, everyone[:, None] - challenger):
            mean = s / n
            squares = np.maximum(0, ss - 2 * mean * ns + mean**2 * nn)
            means.append(mean)
            variances.append(users / (users - 1) * squares / n**2)
            enough &= users >= MIN_USERS
        difference, variance = means[0] - means[1], variances[0] + variances[1]
        # Squares of equal values are 0, but for rounding.
        enough &= variance > 1e-12 * (means[0] ** 2 + means[1] ** 2)
        error = np.where(enough, np.sqrt(variance), np.inf)
        statistics = np.where(enough, difference / error, 0).round(_DIGITS)
    return float(difference[0]), float(error[0]), statistics
