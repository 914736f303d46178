"""Intervals, by hand and by how often they hold the truth."""

import numpy as np
import pytest

from convrec.service.monitoring.intervals import clustered_error, fall_span, mean_span, quantile_span, wilson


def test_wilson_by_hand():
    """Newcombe (Statistics in Medicine, 1998), table I: 81 of 263, and none of 20."""
    assert wilson(81, 263)[:3] == pytest.approx((81 / 263, 0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20)[:3] == pytest.approx((0, 0, 0.1611), abs=5e-5)
    assert wilson(20, 20).high == 1


def test_answers_of_a_person_are_not_independent():
    values = np.array([1.0, -1.0, 1.0, -1.0])
    assert clustered_error(values, ["a", "b", "c", "d"]) == pytest.approx(2 / 4)
    assert clustered_error(values, ["a", "a", "b", "b"]) == 0
    assert clustered_error(values, ["a", "b", "a", "b"]) == pytest.approx(8**0.5 / 4)


def test_a_mean_and_its_fall_by_hand():
    now, before = mean_span(np.array([1.0, 3.0]), ["a", "b"]), mean_span(np.array([3.0, 5.0]), ["a", "b"])
    error = 2**0.5 / 2
    assert now[:3] == pytest.approx((2, 2 - 1.959964 * error, 2 + 1.959964 * error))
    fall = fall_span(now, before)
    half = 1.959964 * error / 4 * (1 + 0.25) ** 0.5
    assert fall[:3] == pytest.approx((0.5, 0.5 - half, 0.5 + half))


def test_a_quantile_lies_between_its_order_statistics():
    span = quantile_span(np.arange(100.0), 0.95)
    assert span.figure == pytest.approx(94.05) and (span.low, span.high) == (90, 99)
