"""Off-policy estimates: how many items would users have accepted in another model's lists? Pure functions.

The item-position model of Li et al., "Offline Evaluation of Ranking Policies with Click Models" (KDD 2018, arXiv
1804.10488), assumes that the probability of accepting item i at rank k of a list depends on the conversation x, i and k
alone, not on the rest of the list. The value of a policy π is then the expected number of accepted items in an answer,

    V(π) = E_x Σ_k Σ_i π(i at k | x) · P(accept | x, i, k).

A slot is one rank of one logged answer. Its weight is w = π(i at k | x) / p(i at k | x), where p is the propensity: the
probability with which the service showed this item at this rank. With r = 1 for an accepted item, else 0:

    IPS     Σ w r / A                            Li et al., eq. 8
    SNIPS   L · Σ w r / Σ w                      Swaminathan and Joachims (NeurIPS 2015), per slot
    DR      Σ_x [Σ_k q(x, π_k, k) + Σ_k w (r - q(x, i, k))] / A     Dudík et al. (Statistical Science, 2014)

for A answers, L items in π's list on average, and a model q of the acceptance probability. IPS counts what was never
shown as not accepted; SNIPS takes it to be accepted as often as what was shown; DR asks q.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from convrec.evaluation.comparison import Interval

ESTIMATORS = ("ips", "snips", "dr")
_BLOCK = 2_000_000  # counts in memory at once


class Slots(NamedTuple):
    """The logged slots. Shape: (S,) each.

    `answer` is the index of the slot's answer, `reward` 1 if its item was accepted, else 0, `propensity` that of the
    service, `predicted` q(x, item, rank).
    """

    answer: np.ndarray
    reward: np.ndarray
    propensity: np.ndarray
    predicted: np.ndarray


class Target(NamedTuple):
    """A policy to evaluate.

    `probability` is that of showing the logged item at the logged rank, for each slot. `length` is the number of items
    in the policy's list, `direct` the sum of q over them, for each answer. Shape: (S,), (A,), (A,).
    """

    probability: np.ndarray
    length: np.ndarray
    direct: np.ndarray


class Terms(NamedTuple):
    """The sums of each answer that all estimates follow from. Shape: (A,) each."""

    weighted: np.ndarray  # Σ w r
    weight: np.ndarray  # Σ w
    length: np.ndarray
    robust: np.ndarray  # direct + Σ w (r - q)


def answer_terms(slots: Slots, target: Target) -> Terms:
    """Return the terms of each answer.

    Raises `ValueError` for a propensity that is not above 0 and at most 1: what was shown could be shown.
    """
    if not ((slots.propensity > 0) & (slots.propensity <= 1)).all():
        raise ValueError("a propensity is not above 0 and at most 1")
    weights = target.probability / slots.propensity

    def by_answer(values: np.ndarray) -> np.ndarray:
        return np.bincount(slots.answer, weights=values, minlength=len(target.length))

    robust = target.direct + by_answer(weights * (slots.reward - slots.predicted))
    return Terms(by_answer(weights * slots.reward), by_answer(weights), target.length.astype(float), robust)


def effective_size(weight: np.ndarray) -> float:
    """Return Kish's effective number of answers, (Σ w)² / Σ w², with the sum of each answer's weights; 0 for none."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def _values(sums: np.ndarray) -> np.ndarray:
    """Return IPS, SNIPS and DR from sums of the terms and the number of answers. Shape: (…, 5) to (…, 3).

    SNIPS is 0 without any weight: nothing that the policy shows was ever shown.
    """
    weighted, weight, length, robust, answers = np.moveaxis(sums, -1, 0)
    mean = np.divide(weighted, weight, out=np.zeros_like(weighted), where=weight > 0)
    return np.stack([weighted / answers, length / answers * mean, robust / answers], axis=-1)


class Estimates(NamedTuple):
    """The policy's value by estimator, the value of the model that was served, and the differences of the two."""

    values: dict[str, Interval]
    served: Interval
    differences: dict[str, Interval]


def estimate(
    terms: Terms, accepted: np.ndarray, is_explored: np.ndarray, persons: Sequence[str], samples: int, seed: int
) -> Estimates:
    """Return the acceptances per answer of a policy and of the served model, with 95 % percentile intervals.

    The served model's value is the mean of `accepted` over the answers without exploration: exploration is chosen at
    random, so they are a fair sample. The bootstrap draws persons with all their answers, and uses the same draws for
    both. `persons` holds the person of each answer. Raises `ValueError` if all answers are explored.

    Shape: (A,) each.
    """
    plain = ~is_explored
    if not plain.any():
        raise ValueError("all answers are explored")
    codes = np.unique(np.asarray(persons), return_inverse=True)[1]
    size, num_answers = int(codes.max()) + 1, len(codes)
    columns = np.column_stack([*terms, np.ones(num_answers), accepted * plain, plain])
    sums = np.stack([np.bincount(codes, weights=column, minlength=size) for column in columns.T], axis=1)
    rng, drawn = np.random.default_rng(seed), []
    block = max(1, _BLOCK // size)
    for start in range(0, samples, block):
        counts = rng.multinomial(size, np.full(size, 1 / size), size=min(block, samples - start))
        drawn.append(counts @ sums)
    every = np.vstack([columns.sum(axis=0), *drawn])  # the observed sums are the first
    values = _values(every[:, :5])
    with np.errstate(invalid="ignore"):
        served = every[:, 5] / every[:, 6]  # NaN for a draw of explored answers alone

    def interval(figures: np.ndarray) -> Interval:
        low, high = np.nanquantile(figures[1:], [0.025, 0.975])
        return Interval(float(figures[0]), float(low), float(high), num_answers)

    return Estimates(
        {name: interval(values[:, place]) for place, name in enumerate(ESTIMATORS)},
        interval(served)._replace(n=int(plain.sum())),
        {name: interval(values[:, place] - served) for place, name in enumerate(ESTIMATORS)},
    )
