"""Guidance with feedback: against a plain loop, without a change, and under a flood of one user's feedback."""

from collections import Counter

import numpy as np
import pytest

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance, Outcomes, surplus
from convrec.data.catalog import Catalog, Item
from tests.rows import make_row

SIZE, LENGTH = 40, 10
FILMS = [(f"Film {number}", 1950 + number) for number in range(SIZE)]
CATALOG = Catalog([Item(*film) for film in FILMS])
RATES = 0.5 * 0.8 ** np.arange(LENGTH)  # accepted by rank


def _outcomes(*shown: tuple[int, list[int], set[int]]) -> Outcomes:
    """Lists that people were shown, each (person, items, accepted items)."""
    rows = [(person, item, rank, item in own) for person, items, own in shown for rank, item in enumerate(items)]
    return Outcomes(*(np.array(column) for column in zip(*rows, strict=True)))


def _shown(num_people: int, num_answers: int, factor: np.ndarray) -> list[tuple[int, list[int], set[int]]]:
    """Lists of random items, each accepted with the rate of its rank times its factor."""
    rng, found = np.random.default_rng(3), []
    for person in np.repeat(np.arange(num_people), num_answers).tolist():
        items = rng.permutation(SIZE)[:LENGTH]
        found.append((person, items.tolist(), set(items[rng.random(LENGTH) < RATES * factor[items]].tolist())))
    return found


def _unchanged(seed: int, people: int, answers: int, kind: str) -> Outcomes:
    """Lists of popular items, the same ones often to a person, accepted as the rank has it: and the person, if `eager`.

    `groups`: people who accept four times as much have items of their own. `first`: one item is always first.
    """
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(people, answers, SIZE)) - 1.5 * np.log1p(np.arange(SIZE))
    is_eager, rates = rng.random((people, 1, 1)) < 0.5, 0.6 * RATES
    if kind in ("eager", "groups"):
        rates = rates * np.where(is_eager, 1, 0.25)
    if kind == "groups":
        scores += 9 * (is_eager == np.arange(SIZE) % 2)
    if kind == "first":
        scores[..., 7] += 99
    items = np.argsort(-scores)[..., :LENGTH]
    places = np.indices(items.shape)
    return Outcomes(*(each.ravel() for each in (places[0], items, places[2], rng.random(items.shape) < rates)))


@pytest.mark.parametrize("kind", ["rank", "eager", "groups", "first"])
@pytest.mark.parametrize(("people", "answers", "worlds"), [(300, 10, 10), (1000, 10, 6), (1000, 30, 2)])
def test_where_nothing_has_changed_there_is_no_surplus_however_often_an_item_is_shown(people, answers, worlds, kind):
    found = [np.abs(surplus(_unchanged(seed, people, answers, kind), SIZE)).max() for seed in range(worlds)]
    assert np.count_nonzero(found) <= worlds // 6 and max(found) < 0.1


def _by_loop(shown: list[tuple[int, list[int], set[int]]], expected: list[float]) -> np.ndarray:
    """The surplus for given rates of the ranks."""
    own, due, more, times = {}, {}, {}, Counter()
    for one in {person for person, _, _ in shown}:
        theirs = [(items, liked) for person, items, liked in shown if person == one]
        more[one] = sum(len(liked) for _, liked in theirs) / sum(sum(expected[: len(items)]) for items, _ in theirs)
    for person, items, liked in shown:
        for rank, item in enumerate(items):
            of_person = min(1, expected[rank] * more[person])
            own[person, item] = own.get((person, item), 0.0) + (item in liked) - of_person
            due[person, item] = due.get((person, item), 0.0) + of_person
            times[person, item] += 1
    total, square, base = np.zeros((3, SIZE))
    for (person, item), value in own.items():
        weight = min(1, 2 / times[person, item])
        total[item] += weight * value
        square[item] += (weight * value) ** 2
        base[item] += weight * due[person, item]
    variance = max(0.0, sum(total**2 - square) - 2 * np.sqrt(2 * sum(square**2))) / sum(base**2)
    found = np.zeros(SIZE)
    for item in np.flatnonzero(base):
        mean, noise = total[item] / base[item], square[item] / base[item] ** 2
        found[item] = mean * variance / (variance + noise)
    return found


@pytest.mark.parametrize("every", [1, 2])
def test_the_surplus_is_that_of_a_plain_loop(every):
    """The rates at ranks 2 and 3 rise, so both are expected to be their mean. Some people accept nothing, one all."""
    lists = [([0, 1, 2], {0, 2}), ([1, 0, 2], {1, 2}), ([2, 3, 4], {2}), ([4, 0, 3], set()), ([0, 2, 1], {0, 1})]
    shown = [(n, items, liked if n % every == 0 else set()) for n in range(30) for items, liked in lists]
    shown.append((30, [2, 3, 5], {2, 3, 5}))  # the first is expected to be accepted with certainty
    first, other = (30 / every * 0.8 + 1) / 31, (30 / every * 0.3 + 1) / 31
    found = surplus(_outcomes(*shown), SIZE)
    np.testing.assert_allclose(found, _by_loop(shown, [first, other, other]), rtol=1e-9)
    assert found[2] > 0.5 and found[4] < -0.5 and not found[6:].any()


def test_after_a_change_it_is_that_change():
    changed = np.where(np.arange(SIZE) < 20, 0.5, 1.5)
    found = surplus(_outcomes(*_shown(300, 10, changed)), SIZE)
    np.testing.assert_allclose(found, changed - 1, atol=0.2)


def _weights(guidance: Guidance, shown: list[tuple[int, list[int], set[int]]]) -> np.ndarray:
    """Return the log weights of all items for a prompt, less their mean."""
    asked = make_row("x", [], "space horror", user_id="other")
    (weights,) = guidance.with_feedback(_outcomes(*shown))([asked])
    found = np.zeros(SIZE)
    found[weights.items] = weights.logs
    return found - found.mean()


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    rng = np.random.default_rng(4)
    rows = [make_row(f"p{n}", [FILMS[i] for i in rng.permutation(SIZE)[:5]], f"space {n % 7}") for n in range(30)]
    evidence = Evidence.fit(rows, CATALOG, TfidfEmbedder, neighbours=15, kept=SIZE)
    return Guidance(evidence, {"popularity": 0.5, "neighbours": 1.5, "wishes": 9.0}, {"name": "tfidf"})


def test_feedback_takes_the_place_of_what_was_there_and_has_the_powers_of_all_shares(guidance):
    first, second = _shown(50, 10, np.linspace(0, 2, SIZE)), _shown(50, 10, np.linspace(2, 0, SIZE))
    again = guidance.with_feedback(_outcomes(*first)).with_feedback(_outcomes(*second))
    np.testing.assert_allclose(again.live, 3 * surplus(_outcomes(*second), SIZE))
    moved = _weights(guidance, second) - _weights(guidance, [(0, [0], {0})])
    np.testing.assert_allclose(moved, again.live - again.live.mean(), atol=1e-5)


def test_a_flood_of_one_user_moves_lists_of_others_as_little_as_one_accept(guidance):
    """10,000 accepts: of one film, or of all films; alone, nothing moves."""
    others = _shown(100, 10, np.linspace(0.5, 1.5, SIZE))
    before = _weights(guidance, others)
    ones = [[(-1, list(np.roll(range(SIZE), -item)[:LENGTH]), {item})] for item in range(SIZE)]
    largest = max(np.abs(_weights(guidance, [*others, *one]) - before).max() for one in ones)
    same = [(-1, ones[30][0][1], {30})] * 10_000
    every = [(-1, one[0][1], set(one[0][1])) for one in ones] * 250
    for flood in (same, every):
        assert 0 < np.abs(_weights(guidance, [*others, *flood]) - before).max() < 2 * largest
        assert not guidance.with_feedback(_outcomes(*flood)).live.any()
    people = [(1000 + n, ones[30 - n % LENGTH][0][1], {30}) for n in range(100)]  # at any rank
    assert (_weights(guidance, [*others, *people]) - before)[30] > 3 * largest, "many people do move them"
