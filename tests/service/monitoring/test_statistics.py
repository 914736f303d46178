"""Intervals and distances: by hand, against plain loops, and on samples of one distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.classical.embedding import TfidfEmbedder
from convrec.service.monitoring import statistics
from convrec.service.monitoring.statistics import (
    auc_span,
    classifier_test,
    clustered_error,
    divergence,
    fall_span,
    independent_units,
    item_distance,
    mean_span,
    quantile_span,
    wilson,
)


def test_divergence_by_hand():
    assert divergence(np.array([1.0, 0]), np.array([0, 1.0])) == 1
    assert divergence(np.array([0.5, 0.5]), np.array([0.5, 0.5])) == 0
    expected = (np.log2(1 / 0.75) + 0.5 * np.log2(0.5 / 0.75) + 0.5 * np.log2(0.5 / 0.25)) / 2
    assert divergence(np.array([1.0, 0]), np.array([0.5, 0.5])) == pytest.approx(expected)


def test_samples_of_the_reference_have_no_distance_and_another_distribution_its_own():
    rng = np.random.default_rng(1)
    reference = np.round(rng.dirichlet(np.ones(100)) * 10_000) + 1
    known = reference / reference.sum()
    other = rng.permutation(known)
    lows, held = [], 0
    for number in range(50):
        same, moved = (rng.choice(100, size=600, p=p) for p in (known, other))
        lows.append(item_distance(same, np.arange(600), reference, number).low)
        span = item_distance(moved, np.arange(600), reference, number)
        held += span.low <= divergence(known, other) ** 0.5 <= span.high
    assert max(lows) < 0.08, "600 items of 100 differ by 0.2 by chance alone"
    assert held >= 42


def test_persons_who_accept_the_same_items_widen_the_interval():
    items, reference = np.random.default_rng(2).choice(50, size=100), 500_000 * np.arange(1, 51)
    nine = [np.repeat(values, 9) for values in (items, np.arange(100))]
    by_person, independent = (item_distance(nine[0], persons, reference, 0) for persons in (nine[1], np.arange(900)))
    halves = [span.high**2 - span.figure**2 for span in (by_person, independent)]
    assert halves[0] == pytest.approx(3 * halves[1], rel=1e-3)


@given(st.integers(0, 2**32 - 1))
def test_auc_is_that_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    ours, theirs = (rng.integers(5, size=int(rng.integers(2, 9))).astype(float) for _ in range(2))
    wins = [(one > other) + 0.5 * (one == other) for one in ours for other in theirs]
    span = auc_span(ours, theirs, np.arange(len(ours)), np.arange(len(theirs)))
    assert span.figure == pytest.approx(np.mean(wins))
    above = [np.mean([(one > other) + 0.5 * (one == other) for other in theirs]) for one in ours]
    below = [np.mean([(one > other) + 0.5 * (one == other) for one in ours]) for other in theirs]
    error = (np.var(above) / len(ours) + np.var(below) / len(theirs)) ** 0.5
    assert span.high == pytest.approx(min(1, span.figure + 1.959964 * error))


def test_the_classifier_tells_other_words_but_not_equal_ones():
    rng = np.random.default_rng(3)
    words = np.array([f"word{letter}" for letter in "abcdefghijklmnopqrst"])

    def texts(weights: np.ndarray, size: int = 300) -> list[str]:
        return [" ".join(rng.choice(words, size=8, p=weights / weights.sum())) for _ in range(size)]

    alike, other = np.ones(20), np.concatenate([np.full(10, 2.0), np.ones(10)])
    persons = [[f"{side}{i}" for i in range(300)] for side in "ab"]
    same = [texts(alike), texts(alike)]
    span = classifier_test(TfidfEmbedder(sum(same, [])), same, persons, 0)
    assert span.low < 0.5 < span.high and span.n == 300
    moved = [texts(other), texts(alike)]
    assert classifier_test(TfidfEmbedder(sum(moved, [])), moved, persons, 0).low > 0.6


def test_answers_of_a_person_are_not_independent():
    values = np.array([1.0, -1.0, 1.0, -1.0])
    assert clustered_error(values, ["a", "b", "c", "d"]) == pytest.approx(2 / 4)
    assert clustered_error(values, ["a", "a", "b", "b"]) == 0
    assert clustered_error(values, ["a", "b", "a", "b"]) == pytest.approx(8**0.5 / 4)


def test_a_mean_and_its_fall_by_hand(monkeypatch):
    monkeypatch.setattr(statistics, "MIN_PERSONS", 2)
    now, before = mean_span(np.array([1.0, 3.0]), ["a", "b"]), mean_span(np.array([3.0, 5.0]), ["a", "b"])
    error = 2**0.5 / 2
    assert now[:3] == pytest.approx((2, 2 - 1.959964 * error, 2 + 1.959964 * error))
    fall = fall_span(now, before)
    half = 1.959964 * error / 4 * (1 + 0.25) ** 0.5
    assert fall[:3] == pytest.approx((0.5, 0.5 - half, 0.5 + half))


def test_few_persons_have_no_interval_and_equal_values_one_of_some_width():
    few, values = mean_span(np.arange(90.0), [f"p{i % 19}" for i in range(90)]), np.zeros(90)
    assert few.figure == 44.5 and np.isnan([few.low, few.high]).all()
    equal = mean_span(values, np.arange(90))
    assert (equal.low, equal.high) == pytest.approx((-1.959964 / 90, 1.959964 / 90))


def test_wilson_by_hand_and_by_user():
    z, n = 1.959964, 50
    low, high = wilson(5, n)[1:3]
    for end in (low, high):  # where (share - p)² = z² p (1 - p) / n
        assert (0.1 - end) ** 2 == pytest.approx(z**2 * end * (1 - end) / n)
    assert wilson(0, n).low == 0 and wilson(n, n).high == 1 and 0 < wilson(0, n).high < 0.1
    assert independent_units(["a", "a", "b", "c"]) == pytest.approx(16 / 6)
    assert independent_units(["a"] * 9) == 1 and independent_units(list("abcd")) == 4
    assert wilson(10, 100, 50)[1:3] == (low, high)


def test_a_quantile_lies_between_its_order_statistics():
    span = quantile_span(np.arange(100.0), 0.95)
    assert span.figure == pytest.approx(94.05) and (span.low, span.high) == (90, 99)
