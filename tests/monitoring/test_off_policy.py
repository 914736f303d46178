"""Off-policy estimates: by hand, against a plain loop, and against the truth of a simulation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.evaluation.comparison import Interval
from convrec.monitoring.off_policy import Slots, Target, Terms, answer_terms, effective_size, estimate
from convrec.monitoring.reward_model import Shown, predict_acceptance

# Two answers of two slots. The policy shows the first answer's first item and the second's second at their ranks.
SLOTS = Slots(
    answer=np.array([0, 0, 1, 1]),
    reward=np.array([1.0, 0.0, 0.0, 1.0]),
    propensity=np.array([0.5, 0.25, 0.5, 0.25]),
    predicted=np.array([0.5, 0.5, 0.25, 0.25]),
)
TARGET = Target(np.array([1.0, 0.0, 0.0, 1.0]), length=np.array([2.0, 2.0]), direct=np.array([0.75, 0.5]))


def _value(terms: Terms, persons: list, samples: int = 50, seed: int = 0) -> dict[str, Interval]:
    """Return the estimates of a policy, where nothing was explored or accepted."""
    nothing = np.zeros(len(persons))
    return estimate(terms, nothing, nothing.astype(bool), persons, samples, seed).values


def test_the_estimates_by_hand():
    """Weights: 2, 0, 0, 4. IPS: (2 + 4) / 2. SNIPS: 2 · 6 / 6. DR: (0.75 + 2 · 0.5 + 0.5 + 4 · 0.75) / 2."""
    terms = answer_terms(SLOTS, TARGET)
    assert terms.weighted.tolist() == [2, 4] and terms.weight.tolist() == [2, 4]
    assert terms.robust.tolist() == [1.75, 3.5]
    values = _value(terms, ["a", "b"])
    assert {name: value.mean for name, value in values.items()} == {"ips": 3.0, "snips": 2.0, "dr": 2.625}
    assert effective_size(terms.weight) == pytest.approx(36 / 20)


def test_the_logging_policy_is_worth_what_was_accepted_whatever_the_estimator():
    slots = SLOTS._replace(propensity=np.ones(4), predicted=np.zeros(4))
    terms = answer_terms(slots, Target(np.ones(4), np.array([2.0, 2.0]), np.zeros(2)))
    values = _value(terms, ["a", "b"])
    assert [value.mean for value in values.values()] == [1.0, 1.0, 1.0]
    assert effective_size(terms.weight) == 2


def test_a_policy_without_support_is_worth_its_model_alone():
    terms = answer_terms(SLOTS, TARGET._replace(probability=np.zeros(4)))
    values = _value(terms, ["a", "b"])
    assert [value.mean for value in values.values()] == [0.0, 0.0, 0.625]
    assert effective_size(terms.weight) == 0


@pytest.mark.parametrize("propensity", [0.0, -0.1, 1.5, np.nan])
def test_an_impossible_propensity_is_an_error(propensity):
    with pytest.raises(ValueError, match="propensity"):
        answer_terms(SLOTS._replace(propensity=np.array([0.5, propensity, 0.5, 0.5])), TARGET)


@given(st.integers(0, 2**32 - 1))
def test_terms_are_those_of_a_plain_loop(seed):
    rng = np.random.default_rng(seed)
    num_answers, num_slots = int(rng.integers(1, 6)), int(rng.integers(1, 20))
    slots = Slots(
        rng.integers(num_answers, size=num_slots),
        rng.integers(2, size=num_slots).astype(float),
        rng.uniform(0.01, 1, num_slots),
        rng.random(num_slots),
    )
    target = Target(rng.random(num_slots), rng.integers(1, 9, num_answers).astype(float), rng.random(num_answers))
    weighted, weight, robust = [0.0] * num_answers, [0.0] * num_answers, list(target.direct)
    for slot in range(num_slots):
        answer, w = slots.answer[slot], target.probability[slot] / slots.propensity[slot]
        weighted[answer] += w * slots.reward[slot]
        weight[answer] += w
        robust[answer] += w * (slots.reward[slot] - slots.predicted[slot])
    terms = answer_terms(slots, target)
    for found, expected in zip(terms, (weighted, weight, target.length, robust), strict=True):
        np.testing.assert_allclose(found, expected)


def test_the_bootstrap_draws_persons():
    """All answers of one person: every draw is the same, so the interval has no width."""
    terms = Terms(*(np.array([1.0, 3.0, 5.0]) for _ in range(4)))
    one = _value(terms, ["a"] * 3)["dr"]
    assert (one.mean, one.low, one.high, one.n) == (3.0, 3.0, 3.0, 3)
    three = _value(terms, ["a", "b", "c"], 400)["dr"]
    assert three.low < 2 and three.high > 4


def test_the_served_model_is_worth_what_was_accepted_without_exploration():
    terms, explored = Terms(*(np.array([2.0, 4.0, 9.0]) for _ in range(4))), np.array([False, False, True])
    found = estimate(terms, np.array([1.0, 3.0, 8.0]), explored, ["a", "b", "c"], 200, 0)
    assert found.served.mean == 2 and found.served.n == 2 and (found.served.low, found.served.high) == (1, 3)
    assert found.differences["dr"].mean == 3
    with pytest.raises(ValueError, match="all answers are explored"):
        estimate(terms, np.ones(3), np.ones(3, dtype=bool), ["a", "b", "c"], 200, 0)


def test_differences_are_paired():
    values = np.array([2.0, 4.0, 9.0])
    found = estimate(Terms(*(values for _ in range(4))), values - 1, values < 0, ["a", "b", "c"], 100, 0)
    assert found.differences["dr"][:3] == pytest.approx((1, 1, 1)), "a constant difference, whatever is drawn"


N, EXPLORE = 4, 0.4


def _simulate(rng: np.random.Generator, num_answers: int) -> tuple[Slots, Target, np.ndarray]:
    """Return logged slots, another policy, and the acceptance probability of that policy's items: its true value.

    The service shows items 0 to 3 in this order or, with probability `EXPLORE`, in a random one. The other policy shows
    them in reverse. Acceptance depends on conversation, item and rank.
    """
    taste = rng.random((num_answers, N))
    examined = 1 / np.arange(1, N + 1)
    random_orders = rng.permuted(np.tile(np.arange(N), (num_answers, 1)), axis=1)
    orders = np.where(rng.random((num_answers, 1)) < EXPLORE, random_orders, np.arange(N))
    accept = np.take_along_axis(taste, orders, 1) * examined
    reward = (rng.random(accept.shape) < accept).astype(float)
    propensity = np.where(orders == np.arange(N), 1 - EXPLORE + EXPLORE / N, EXPLORE / N)
    target = (orders == np.arange(N)[::-1]).astype(float)
    wrong = 0.5 * examined[np.tile(np.arange(N), (num_answers, 1))]  # a model that knows no taste
    slots = Slots(np.repeat(np.arange(num_answers), N), *(a.ravel() for a in (reward, propensity, wrong)))
    policy = Target(target.ravel(), np.full(num_answers, float(N)), np.full(num_answers, 0.5 * examined.sum()))
    return slots, policy, (taste[:, ::-1] * examined).sum(axis=1)


def test_ips_and_dr_are_unbiased_and_dr_varies_less():
    """Over 400 logs of 200 answers; SNIPS is consistent, so its bias is looked at in one long log."""
    rng = np.random.default_rng(5)
    errors = []
    for _ in range(400):
        slots, policy, truth = _simulate(rng, 200)
        terms = answer_terms(slots, policy)
        errors.append([terms.weighted.mean() - truth.mean(), terms.robust.mean() - truth.mean()])
    mean, deviation = np.mean(errors, axis=0), np.std(errors, axis=0)
    assert (np.abs(mean) < 3 * deviation / 20).all(), "three standard errors of the mean of 400"
    assert deviation[1] < deviation[0]
    slots, policy, truth = _simulate(rng, 100_000)
    snips = _value(answer_terms(slots, policy), list(range(100_000)), 2)["snips"].mean
    assert snips == pytest.approx(truth.mean(), abs=0.02)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng, held = np.random.default_rng(6), 0
    for number in range(100):
        slots, policy, _ = _simulate(rng, 300)
        value = _value(answer_terms(slots, policy), list(range(300)), 200, number)["dr"]
        held += value.low <= 0.5 * (1 + 1 / 2 + 1 / 3 + 1 / 4) <= value.high
    assert 88 <= held <= 100


def test_the_reward_model_learns_rank_item_and_similarity():
    rng = np.random.default_rng(7)
    answer = np.repeat(np.arange(2000), 5)
    item, rank = rng.integers(20, size=len(answer)), np.tile(np.arange(1, 6), 2000)
    shown = Shown(answer, item, rank, rng.random(len(answer)))
    truth = 1 / (1 + np.exp(-(-1 + 0.1 * (item - 10) - np.log(rank) + 2 * shown.cosine)))
    accepted = (rng.random(len(answer)) < truth).astype(float)
    asked = Shown(np.arange(2000), np.full(2000, 3), np.full(2000, 1), np.full(2000, 0.5))
    ours, theirs = predict_acceptance(shown, accepted, asked, [str(i) for i in range(2000)], 20, 0)
    assert np.abs(ours - truth).mean() < 0.03
    assert theirs.mean() == pytest.approx(1 / (1 + np.exp(-(-1 - 0.7 + 1))), abs=0.05)


def test_the_reward_model_of_a_person_does_not_know_that_person_s_rewards():
    """The first person accepts everything, all others nothing."""
    answer = np.arange(40)
    shown = Shown(answer, np.zeros(40, int), np.ones(40, int), np.zeros(40))
    persons = ["first"] * 20 + [f"other {i}" for i in range(20)]
    accepted = (answer < 20).astype(float)
    ours, _ = predict_acceptance(shown, accepted, shown, persons, 1, 0)
    assert ours[:20].max() == 0
