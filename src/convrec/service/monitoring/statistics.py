"""Intervals of what the service did, and distances to what the model was trained on. Pure functions.

Answers of one person are correlated, so standard errors are by person, and need `MIN_PERSONS` of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import rel_entr
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict

from convrec.classical.embedding import Embedder

FOLDS = 5
MIN_PERSONS = 20  # with fewer, an interval by person is too narrow: that of one person has no width at all
_DRAWS = 100  # random exchanges that show how far apart samples of one distribution are
Z = 1.959964  # the 97.5 % quantile of the normal distribution


class Span(NamedTuple):
    """A figure, the ends of its 95 % interval, and the size of its sample."""

    figure: float
    low: float
    high: float
    n: int


def wilson(count: int, n: int, units: float | None = None) -> Span:
    """Return a share with the interval of Wilson (JASA, 1927), which is also valid near 0 and 1.

    `units` is the number of independent ones among the n, by default all.
    """
    units, share = units or n, count / n
    middle, half = share + Z**2 / (2 * units), Z * (share * (1 - share) / units + (Z / (2 * units)) ** 2) ** 0.5
    low, high = (end / (1 + Z**2 / units) for end in (middle - half, middle + half))
    return Span(share, low if count else 0.0, high if count < n else 1.0, n)


def independent_units(persons: Sequence[str] | np.ndarray) -> float:
    """Return to how many independent answers those of some persons are equal if one person always does the same.

    n² / Σ n_u², with n_u answers of person u (Kish, 1965). Shape: (n,).
    """
    counts = np.unique(np.asarray(persons), return_counts=True)[1].astype(float)
    return float(counts.sum() ** 2 / (counts**2).sum()) if len(counts) else 0.0


def clustered_error(influence: np.ndarray, persons: Sequence[str] | np.ndarray) -> float:
    """Return the standard error of a mean whose terms, with mean 0, are `influence`; those of a person are added first.

    The sandwich estimator of Liang and Zeger (Biometrika, 1986) without covariates. Shape: (n,).
    """
    codes = np.unique(np.asarray(persons), return_inverse=True)[1]
    return float(np.sqrt((np.bincount(codes, weights=influence) ** 2).sum()) / len(influence))


def mean_span(values: np.ndarray, persons: Sequence[str] | np.ndarray) -> Span:
    """Return a mean of counts with its interval, which has no ends with less than `MIN_PERSONS`. Shape: (n,).

    The error is at least that of one count: equal values of many persons may still differ from the next one.
    """
    mean = float(values.mean())
    half = Z * max(clustered_error(values - mean, persons), 1 / len(values))
    if len(np.unique(persons)) < MIN_PERSONS:
        half = float("nan")
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


def classifier_test(
    embedder: Embedder, texts: Sequence[Sequence[str]], persons: Sequence[Sequence[str]], seed: int
) -> Span:
    """Return how well a classifier tells two samples of conversations apart: its AUC; 0.5 if they are alike.

    The classifier two-sample test of Lopez-Paz and Oquab (ICLR 2017), with the AUC as the statistic: a logistic
    regression on the embeddings, scored on held-out folds. Conversations of a person are in one fold. n is the size of
    the first sample.
    """
    found = embedder.embed_conversations([text for sample in texts for text in sample])
    vectors = sparse.csr_array(found) if sparse.issparse(found) else np.asarray(found)
    labels = np.repeat([1, 0], [len(sample) for sample in texts])
    # A person may be in both samples, and has then one name in both.
    names = np.array([person for sample in persons for person in sample])
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
    model = LogisticRegression(class_weight="balanced", max_iter=1000)
    scores = cross_val_predict(model, vectors, labels, groups=names, cv=folds, method="decision_function")
    return auc_span(scores[labels == 1], scores[labels == 0], *(names[labels == label] for label in (1, 0)))


def auc_span(ours: np.ndarray, theirs: np.ndarray, our_persons: np.ndarray, their_persons: np.ndarray) -> Span:
    """Return P(a score of ours > one of theirs) with its interval; ties count half. Shape: (n,), (m,), (n,), (m,).

    The variance is that of Obuchowski (Biometrics, 1997): DeLong's, with the terms of a person added.
    """
    n, m = len(ours), len(theirs)
    everywhere = rankdata(np.concatenate([ours, theirs]))
    above = (everywhere[:n] - rankdata(ours)) / m  # share of theirs below each of ours
    below = 1 - (everywhere[n:] - rankdata(theirs)) / n  # share of ours above each of theirs
    auc = float(above.mean())
    half = Z * float(np.hypot(clustered_error(above - auc, our_persons), clustered_error(below - auc, their_persons)))
    return Span(auc, max(0.0, auc - half), min(1.0, auc + half), n)


def divergence(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the Jensen-Shannon divergence of two distributions, in bits: from 0 to 1 (Lin, 1991). Shape: (C,) each."""
    middle = (ours + theirs) / 2
    return max(0.0, float(rel_entr(ours, middle).sum() + rel_entr(theirs, middle).sum()) / 2 / np.log(2))


def item_distance(items: np.ndarray, persons: Sequence[str] | np.ndarray, reference: np.ndarray, seed: int) -> Span:
    """Return the Jensen-Shannon distance of a sample of items to the counts of a reference, corrected for chance.

    The distance is the square root of the divergence. Samples of one distribution also differ: the mean divergence
    after random exchanges between sample and reference is subtracted. The interval is that of the divergence by the
    delta method. `items` holds catalog indices, `reference` a count for each catalog item. Shape: (n,), (n,), (C,).
    """
    n, m = len(items), int(reference.sum())
    counts = np.bincount(items, minlength=len(reference))
    ours, theirs = counts / n, reference / m
    pooled = (counts + reference).astype(np.int64)
    draws = np.random.default_rng(seed).multivariate_hypergeometric(pooled, n, size=_DRAWS, method="marginals")
    chance = float(np.mean([divergence(draw / n, (pooled - draw) / m) for draw in draws]))
    found = divergence(ours, theirs)
    # The derivatives of the divergence by the probability of an item, in each of the two distributions.
    slopes = [np.log2(np.where(p > 0, p, 1) / np.where(p > 0, (ours + theirs) / 2, 1)) / 2 for p in (ours, theirs)]
    own = slopes[0][items]
    error = float(np.sqrt((theirs * (slopes[1] - theirs @ slopes[1]) ** 2).sum() / m))
    half = Z * float(np.hypot(clustered_error(own - own.mean(), persons), error))
    figure, low, high = (float(np.sqrt(max(0.0, found - chance + shift))) for shift in (0, -half, half))
    return Span(figure, low, high, n)
