"""Sequential tests: hand-computed values, and their error rates while every answer is looked at."""

from math import exp, inf, log, sqrt

import numpy as np
import pytest

from convrec.evaluation import sequential
from convrec.evaluation.sequential import compare_arms, mixture_scale, normal_margin, normal_p

ALPHA = 0.05


def test_the_scale_makes_the_sequence_tightest_at_the_planned_number():
    u = mixture_scale(ALPHA, 500) * 500
    assert u == pytest.approx(log(u + 1) - 2 * log(ALPHA), rel=1e-9)  # the derivative of the margin is 0
    widths = [normal_margin(n, ALPHA, 500) for n in (400, 500, 600)]
    assert min(widths) == widths[1]


def test_the_margin_by_hand():
    u = 3.0
    n = u / mixture_scale(ALPHA, 500)
    assert normal_margin(n, ALPHA, 500) == pytest.approx(sqrt(2 * 4 / 3 * log(2 / 0.05)), rel=1e-9)
    assert normal_p(2.0, n, ALPHA, 500) == pytest.approx(2 * exp(-4 * 3 / 8), rel=1e-9)


@pytest.mark.parametrize("effective", [40, 500, 5000])
def test_the_p_value_is_the_level_that_the_sequence_just_reaches(effective):
    assert normal_p(normal_margin(effective, ALPHA), effective, ALPHA) == pytest.approx(ALPHA, rel=1e-9)


def test_an_arm_s_look_by_hand(monkeypatch):
    """Two users an arm: the variances of the users' sums, not of the answers."""
    monkeypatch.setattr(sequential, "MIN_USERS", 2)
    users = ["a", "a", "b", "c", "d", "d"]
    arms = [False, False, False, True, True, True]
    values = [1, 1, 0, 0, 2, 2]
    look = compare_arms(users, arms, values, 0.5, ALPHA)[-1]
    # Champion: mean 2/3, residuals of the sums 2/3 and -2/3, variance 2 * (8/9) / 9. Challenger: twice as much.
    champion = 2 * (8 / 9) / 9
    variance = champion + 4 * champion
    effective = (2 / 9 / 0.5 + 8 / 9 / 0.5) / variance
    assert look[:4] == (6, 4, pytest.approx(effective), pytest.approx(2 / 3))
    assert look.high - look.mean == pytest.approx(normal_margin(effective, ALPHA) * sqrt(variance))
    assert look.low + look.high == pytest.approx(2 * look.mean)


def test_answers_of_the_same_users_count_less():
    rng = np.random.default_rng(0)
    liked, users = rng.random(50) < 0.5, rng.integers(50, size=500)
    look = compare_arms([str(user) for user in users], users % 2 == 1, liked[users].astype(int), 0.5, ALPHA)[-1]
    assert 35 < look.effective < 60


def test_few_users_or_equal_values_give_no_bounds():
    arms = [False, True] * 19
    few = compare_arms([str(i) for i in range(38)], arms, range(38), 0.5, ALPHA)[-1]
    assert few[4:] == (-inf, inf, 1.0) and few.mean == 1.0
    equal = compare_arms([str(i) for i in range(400)], [False, True] * 200, [1] * 400, 0.5, ALPHA)[-1]
    assert equal[4:] == (-inf, inf, 1.0)


def test_looks_are_at_most_so_many_and_end_with_all_answers():
    def sizes(number):
        return [look.answers for look in compare_arms(["a"] * number, [True] * number, [1] * number, 0.5, ALPHA)]

    assert sizes(3) == [1, 2, 3] and sizes(0) == []
    assert len(sizes(1234)) == 200 and sizes(1234)[-1] == 1234


def _arms(rng, num_users, num_answers, effect):
    """Return answers of users who accept with a probability of their own."""
    users, in_challenger = rng.integers(num_users, size=num_answers), rng.random(num_users) < 0.5
    chances = np.clip(rng.normal(0.25, 0.1, num_users) + effect * in_challenger, 0, 1)
    return [str(user) for user in users], in_challenger[users], rng.binomial(4, chances[users])


@pytest.mark.parametrize("num_users", [150, pytest.param(100_000, marks=pytest.mark.slow)])
def test_looking_all_the_time_rarely_finds_what_is_not_there(monkeypatch, num_users):
    """At most 5 % of 200 experiments without an effect end with p <= 5 %; with 95 % confidence, up to 16 of them."""
    monkeypatch.setattr(sequential, "MAX_LOOKS", 60)
    rng = np.random.default_rng(5)
    ab = sum(compare_arms(*_arms(rng, num_users, 600, 0.0), 0.5, ALPHA)[-1].p <= ALPHA for _ in range(200))
    assert ab <= 16


def test_effects_are_found(monkeypatch):
    monkeypatch.setattr(sequential, "MAX_LOOKS", 40)
    rng = np.random.default_rng(6)
    better = [compare_arms(*_arms(rng, 400, 1000, 0.08), 0.5, ALPHA)[-1] for _ in range(20)]
    worse = [compare_arms(*_arms(rng, 400, 1000, -0.08), 0.5, ALPHA)[-1] for _ in range(20)]
    assert sum(look.p <= ALPHA and look.low > 0 for look in better) >= 18
    assert sum(look.p <= ALPHA and look.high < 0 for look in worse) >= 18
