"""The test of online experiments: against a plain loop, what later answers may change, and its error rates."""

from math import inf, lgamma, log
from typing import NamedTuple

import numpy as np
import pytest

from convrec.evaluation import sequential
from convrec.evaluation.sequential import Look, compare_arms, look_sizes, split_evidence

ALPHA = 0.05


def test_the_looks_are_after_fixed_numbers_of_answers():
    assert look_sizes(99) == [] and look_sizes(160) == [100, 112, 126, 141, 158]
    assert look_sizes(12_000)[20::20] == [1000, 10_000]


def _ratio(codes, values, in_challenger):
    """Return the difference of means and its standard error, by loops over users."""
    means, variance = [], 0.0
    for side in (True, False):
        own = [user for user in set(codes) if in_challenger[user] == side]
        if len(own) < sequential.MIN_USERS:
            return None
        parts = {user: [value for code, value in zip(codes, values, strict=True) if code == user] for user in own}
        number = sum(map(len, parts.values()))
        mean = sum(map(sum, parts.values())) / number
        squares = sum((sum(part) - mean * len(part)) ** 2 for part in parts.values())
        variance += len(own) / (len(own) - 1) * squares / number**2
        means.append(mean)
    return (means[0] - means[1], variance**0.5) if variance else None


@pytest.mark.parametrize("of_activity", [False, True])
def test_the_test_is_that_of_a_plain_loop(monkeypatch, of_activity):
    monkeypatch.setattr(sequential, "MIN_USERS", 3)
    monkeypatch.setattr(sequential, "DRAWS", 299)
    monkeypatch.setattr(sequential, "FIRST_LOOK", 20)
    rng, levels = np.random.default_rng(1), sorted([*np.geomspace(0.001, 1, 31), ALPHA])
    codes = np.minimum(rng.integers(25, size=40), rng.integers(25, size=40)).tolist()
    codes = [list(dict.fromkeys(codes)).index(code) for code in codes]
    real = rng.random(25) < 0.4
    if of_activity:
        real = np.array([codes.count(user) == 1 for user in range(25)])
    values = (rng.binomial(3, 0.4, 40) + real[codes]).tolist()
    drawn = np.random.default_rng(0).random((max(codes) + 1, 299), dtype=np.float32) < 0.4
    arms = np.hstack([real[: max(codes) + 1, None], drawn])
    given = None if of_activity else values
    looks = compare_arms([f"u{code}" for code in codes], real[codes], given, 0.4, ALPHA)
    assert [look.answers for look in looks] == [20, 22, 25, 28, 32, 36, 40]
    rejected: list[set[int]] = [set() for _ in levels]
    for number, look in enumerate(looks):
        own, outcomes = codes[: look.answers], values[: look.answers]
        if of_activity:  # a rank is the number of users with fewer answers, and half of those with equally many
            counts = [own.count(user) for user in range(max(own) + 1)]
            own = range(len(counts))
            outcomes = [sum((other < one) + (other == one) / 2 for other in counts) / len(own) for one in counts]
        found = [_ratio(own, outcomes, arms[:, draw]) for draw in range(300)]
        statistics = [round(one[0] / one[1], 9) if one else 0.0 for one in found]
        ranks = [min(sum(x >= own for x in statistics), sum(x <= own for x in statistics)) for own in statistics]
        for place, level in enumerate(levels):
            room = level * (1 - 10 ** (-(number + 1) / 50)) * 300
            for rank in range(1, 300):
                more = rejected[place] | {draw for draw in range(300) if ranks[draw] <= rank}
                if len(more) > room:
                    break
                now = more
            rejected[place] = now if rank > 1 else rejected[place]
        for place in reversed(range(len(levels) - 1)):
            rejected[place] &= rejected[place + 1]
        assert look.p == min([1.0, *(level for level, draws in zip(levels, rejected, strict=True) if 0 in draws)])
        if found[0]:
            assert look.mean == pytest.approx(found[0][0])
    assert looks[-1].p < 1 and len({look.p for look in looks}) > 2


def test_the_bounds_exclude_no_difference_at_the_look_that_decides(monkeypatch):
    monkeypatch.setattr(sequential, "DRAWS", 1999)
    decided = 0
    for seed in range(8):
        looks = compare_arms(*_even(np.random.default_rng(seed), 0.4), 0.5, ALPHA)
        first = next((number for number, look in enumerate(looks) if look.p <= ALPHA), len(looks))
        assert all(look.low <= 0 <= look.high for look in looks[:first])
        assert all(look.low < look.mean < look.high for look in looks)
        if first < len(looks):
            assert looks[first].low > 0
            decided += 1
    assert decided >= 2


def test_later_answers_change_no_earlier_look():
    """The former test drew a new grid of looks from all answers: its p-value rose, and verdicts were taken back."""
    users, arms, values = _even(np.random.default_rng(5), 0.1)
    before: list[Look] = []
    for size in (90, 150, 558, 705, 1000):
        looks = compare_arms(users[:size], arms[:size], values[:size], 0.5, ALPHA)
        assert looks[: len(before)] == before
        before = looks
    assert len(before) == 21 and all(one.p >= next_one.p for one, next_one in zip(before, before[1:], strict=False))


def test_few_users_or_equal_values_are_not_enough_data():
    arms = [False, True] * 100
    one = compare_arms(["everybody"] * 200, [True] * 200, range(200), 0.5, ALPHA)
    few = compare_arms([f"{i % 38}" for i in range(200)], arms, range(200), 0.5, ALPHA)
    equal = compare_arms([str(i) for i in range(200)], arms, [1 / 3] * 200, 0.5, ALPHA)
    for looks in (one, few, equal):
        assert {look[3:] for look in looks} == {(-inf, inf, 1.0)} and len(looks) == 7
    assert few[-1].users == 38 and few[-1].mean == 1.0


def test_an_arm_without_any_acceptance_is_not_equal_values():
    arms = [False, True] * 100
    values = [int(not arm and i % 3 == 0) for i, arm in enumerate(arms)]
    look = compare_arms([str(i) for i in range(200)], arms, values, 0.5, ALPHA)[-1]
    assert look.high < 0 and look.p < 0.01 and look.low < look.high


def test_evidence_against_a_share_by_hand():
    """The Bayes factor of a uniform prior is x! (n - x)! / (n + 1)! / (q^x (1 - q)^(n - x)), after each user."""
    by_hand = lgamma(12) + lgamma(2) - lgamma(14) - 11 * log(0.3) - log(0.7)
    assert split_evidence(np.array([False] + [True] * 11), 0.3)[-1] == pytest.approx(by_hand)
    assert np.exp(split_evidence([True] * 4, 0.5)) == pytest.approx([1, 1, 4 / 3, 2, 16 / 5])
    rng = np.random.default_rng(2)
    assert sum(split_evidence(rng.random(2000) < 0.2, 0.2).max() > log(20) for _ in range(200)) < 10
    assert split_evidence(rng.random(2000) < 0.25, 0.2).max() > log(1000)


class Scenario(NamedTuple):
    """Answers of `users` users, who ask equally often or by Zipf's law; what they accept has a mean of about 1."""

    users: int
    answers: int
    share: float
    is_zipf: bool = False
    is_heavy: bool = False
    effect: float = 0.3  # of the challenger, on what users accept, in the measure of power
    least_power: float = 0.0  # that of an asymptotic confidence sequence (docs/log/2026-11-30.md), where measured


SCENARIOS = {
    "equal activity, half": Scenario(400, 1000, 0.5, least_power=0.603),
    "equal activity, share .2": Scenario(400, 2000, 0.2),
    "equal activity, share .1": Scenario(400, 2000, 0.1, effect=0.4),
    "Zipf activity, half": Scenario(400, 2000, 0.5, is_zipf=True, effect=0.5, least_power=0.637),
    "Zipf activity, share .2": Scenario(400, 2000, 0.2, is_zipf=True, effect=0.7),
    "Zipf activity, share .1": Scenario(400, 2000, 0.1, is_zipf=True, effect=1.0),
    "heavy tails, half": Scenario(400, 1000, 0.5, is_heavy=True, effect=0.8, least_power=0.5),
    "heavy tails, share .1": Scenario(400, 2000, 0.1, is_heavy=True, effect=1.5),
    "one answer a user, half": Scenario(2000, 2000, 0.5, effect=0.25, least_power=0.942),
}


def simulate(scenario: Scenario, rng: np.random.Generator, effect: float) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the users, arms and values of an experiment whose challenger adds `effect` to what users accept."""
    weights = 1 / np.arange(1, scenario.users + 1) if scenario.is_zipf else np.ones(scenario.users)
    users = rng.choice(scenario.users, size=scenario.answers, p=weights / weights.sum())
    if scenario.users == scenario.answers:
        users = np.arange(scenario.users)
    in_challenger = rng.random(scenario.users) < scenario.share
    tastes = np.maximum(0, rng.lognormal(0, 0.5, scenario.users) + effect * in_challenger)
    values = rng.poisson(tastes[users]).astype(float)
    if scenario.is_heavy:
        values = tastes[users] * (rng.pareto(1.5, scenario.answers) + 0.2)
    return [str(user) for user in users], in_challenger[users], values


def _even(rng, effect):
    return simulate(SCENARIOS["equal activity, half"], rng, effect)


@pytest.mark.parametrize("name", ["equal activity, half", "Zipf activity, share .1"])
def test_looking_all_the_time_rarely_finds_what_is_not_there(monkeypatch, name):
    """At most 5 % of 100 experiments without an effect, and of 50; with 99 % confidence, up to 11 and 7 of them."""
    monkeypatch.setattr(sequential, "DRAWS", 999)
    monkeypatch.setattr(sequential, "_LEVELS", np.ones(1))
    rng, scenario = np.random.default_rng(5), SCENARIOS[name]._replace(answers=800)
    worlds = [simulate(scenario, rng, 0.0) for _ in range(100)]
    assert sum(compare_arms(*world, scenario.share, ALPHA)[-1].p <= ALPHA for world in worlds) <= 11
    assert sum(compare_arms(*world[:2], None, scenario.share, ALPHA)[-1].p <= ALPHA for world in worlds[:50]) <= 7


@pytest.mark.parametrize(("lost", "tail"), [(0.25, 1.5), (0.08, 3), (0.0, 1.5)])
def test_lost_answers_are_found_however_unequal_the_activity(lost, tail):
    """5,000 users, of whose answers Pareto's law gives the expected number, and one arm loses answers."""
    rng = np.random.default_rng(4)
    users = np.repeat(np.arange(5000), rng.poisson((3 * tail - 1) * (1 + rng.pareto(tail, 5000).clip(max=100))))
    rng.shuffle(users)
    arms = (rng.random(5000) < 0.5)[users]
    kept = ~arms | (rng.random(len(users)) >= lost)
    look = compare_arms(users[kept], arms[kept], None, 0.5, 0.01)[-1]
    assert (look.p > 0.05) if lost == 0 else (look.p <= 0.01 and look.mean < 0)


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENARIOS)
def test_false_alarms_stay_below_alpha_and_power_is_kept(monkeypatch, name):
    """4,000 experiments without an effect, and 1,000 with one at half: docs/online-experiments.md has the rates."""
    monkeypatch.setattr(sequential, "_LEVELS", np.ones(1))  # only the verdicts matter
    scenario = SCENARIOS[name]

    def rate(effect: float, number: int, draws: int) -> float:
        monkeypatch.setattr(sequential, "DRAWS", draws)
        rng = np.random.default_rng(8 if effect else 7)
        found = [compare_arms(*simulate(scenario, rng, effect), scenario.share, ALPHA)[-1].p for _ in range(number)]
        return float(np.mean(np.array(found) <= ALPHA))

    assert rate(0.0, 4000, 999) <= ALPHA
    if scenario.least_power:
        assert rate(scenario.effect, 1000, 4999) >= scenario.least_power
