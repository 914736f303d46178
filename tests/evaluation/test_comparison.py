import itertools

import numpy as np
import pandas as pd
import pytest

from convrec.evaluation import comparison
from convrec.evaluation.comparison import mean_interval, mean_intervals, paired_interval, ratio_interval

pytestmark = pytest.mark.usefixtures("few_persons")


def _frame(**columns):
    return pd.DataFrame({"prompt_id": list("vwxyz"), "person": list("aabcc"), **columns})


def test_paired_interval_needs_the_same_rows():
    one = pd.DataFrame({"prompt_id": ["a", "b"], "person": ["c", "c"], "m": [1.0, 0.0]})
    other = one.assign(m=[0.5, 0.0])
    assert paired_interval(one, other, "m", 200, 0).mean == 0.25
    with pytest.raises(ValueError, match="same rows"):
        paired_interval(one, other.iloc[::-1], "m", 200, 0)
    with pytest.raises(ValueError, match="same rows"):
        paired_interval(one, other.assign(person=["c", "d"]), "m", 200, 0)


def test_draws_are_of_persons_with_all_their_rows(monkeypatch):
    """One block or many, the interval is that of the plain bootstrap with the same draws."""
    frame = _frame(m=[1.0, 0.0, 4.0, 2.0, 2.0])
    drawn = np.vstack(list(comparison._draws(3, 500, 7)))
    assert drawn.shape == (500, 3) and (drawn.sum(axis=1) == 3).all() and len(np.unique(drawn, axis=0)) == 10
    means = [(a * 1 + b * 4 + c * 4) / (2 * a + b + 2 * c) for a, b, c in drawn.tolist()]
    interval = mean_interval(frame, "m", 500, 7)
    assert interval.mean == 1.8 and interval.n == 5
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    monkeypatch.setattr(comparison, "_BLOCK", 100)
    assert mean_interval(frame, "m", 500, 7) == pytest.approx(interval)


def test_rows_without_a_value_do_not_count():
    frame = _frame(m=[1.0, np.nan, 3.0, np.nan, np.nan], other=[1.0, 1, 1, 1, 1], none=[np.nan] * 5)
    intervals = mean_intervals(frame, ["m", "other", "none"], 200, 0)
    assert list(intervals) == ["m", "other"]
    assert intervals["m"].mean == 2 and intervals["m"].n == 2 and (intervals["m"].low, intervals["m"].high) == (1, 3)
    assert intervals["other"] == (1, 1, 1, 5)


def test_a_ratio_is_of_means_over_the_rows_that_have_both():
    frame = _frame(over=[2.0, 4.0, np.nan, 6.0, 6.0], under=[1.0, 2.0, 9.0, 3.0, 3.0])
    assert ratio_interval(frame, "over", "under", 200, 0) == pytest.approx((2, 2, 2, 4))
    assert ratio_interval(frame.assign(under=0.0), "over", "under", 200, 0) is None


def test_the_p_value_is_that_of_all_sign_flips():
    rng = np.random.default_rng(1)
    persons = np.repeat(np.arange(9), 2)
    one = pd.DataFrame({"prompt_id": np.arange(18), "person": persons, "m": rng.normal(0.4, 1, 18)})
    other = one.assign(m=0.0)
    sums = one.groupby("person")["m"].sum().to_numpy()
    flips = [abs(np.dot(signs, sums)) for signs in itertools.product([-1, 1], repeat=9)]
    exact = np.mean(np.array(flips) >= abs(sums.sum()) - 1e-9)
    gain = paired_interval(one, other, "m", 20_000, 0)
    assert gain.p == pytest.approx(exact, abs=0.01) and 0.01 < exact < 0.99
    assert gain.n == 18 and gain.low <= gain.mean <= gain.high


def test_equal_systems_have_p_one_and_very_different_ones_the_least():
    one = pd.DataFrame({"prompt_id": np.arange(40), "person": np.arange(40), "m": np.linspace(0.1, 1, 40)})
    assert paired_interval(one, one, "m", 200, 0).p == 1
    assert paired_interval(one, one.assign(m=0.0), "m", 200, 0).p == pytest.approx(1 / 201)


def test_few_persons_have_no_interval(monkeypatch):
    """The interval of one person had no width, whatever the number of rows."""
    monkeypatch.setattr(comparison, "MIN_PERSONS", 6)
    frame = pd.DataFrame({"prompt_id": range(60), "person": np.arange(60) % 5, "m": np.arange(60) % 3.0, "n": 1.0})
    for persons in (frame["person"], "everybody"):
        few = frame.assign(person=persons)
        assert mean_interval(few, "m", 200, 0) == (1.0, None, None, 60)
        assert ratio_interval(few, "m", "n", 200, 0) == (1.0, None, None, 60)
        assert paired_interval(few, few.assign(m=-1.0), "m", 200, 0)[:4] == (2.0, None, None, 60)
    enough = frame.assign(person=np.arange(60) % 6)
    interval = mean_interval(enough, "m", 200, 0)
    assert interval.low is not None and interval.low < interval.high
    half = enough.assign(m=np.where(enough["person"] < 5, enough["m"], np.nan))
    assert mean_interval(half, "m", 200, 0).low is None, "of the persons with a value"
