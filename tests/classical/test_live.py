"""Guidance with feedback: against a plain loop, without a change, and under a flood of one user's feedback."""

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


def _shown(
    num_people: int, num_answers: int, factor: np.ndarray, seed: int = 3
) -> list[tuple[int, list[int], set[int]]]:
    """Lists of random items, each accepted with the rate of its rank times its factor."""
    rng, found = np.random.default_rng(seed), []
    for person in np.repeat(np.arange(num_people), num_answers).tolist():
        items = rng.permutation(SIZE)[:LENGTH]
        found.append((person, items.tolist(), set(items[rng.random(LENGTH) < RATES * factor[items]].tolist())))
    return found


def _by_loop(shown: list[tuple[int, list[int], set[int]]], expected: list[float]) -> np.ndarray:
    """The surplus for given rates of the ranks; a person is taken to have 5 more accepted items, as expected."""
    own, bases, more = {}, {}, {}
    for one in {person for person, _, _ in shown}:
        theirs = [(items, liked) for person, items, liked in shown if person == one]
        due = sum(sum(expected[: len(items)]) for items, _ in theirs)
        more[one] = (5 + sum(len(liked) for _, liked in theirs)) / (5 + due)
    for person, items, liked in shown:
        for rank, item in enumerate(items):
            of_person = expected[rank] * more[person]
            own[person, item] = own.get((person, item), 0.0) + (item in liked) - of_person
            bases.setdefault((person, item), []).append(of_person)
    total, square, base = np.zeros((3, SIZE))
    cut = {pair: min(max(value, -1.0), 1.0) for pair, value in own.items()}
    mean = np.mean(list(cut.values()))
    for (person, item), value in cut.items():
        value -= mean
        total[item] += value
        square[item] += value**2
        base[item] += np.mean(bases[person, item])
    variance = max(0.0, sum(total**2 - square) - 2 * np.sqrt(2 * sum(square**2))) / sum(base**2)
    found = np.zeros(SIZE)
    for item in np.flatnonzero(base):
        mean, noise = total[item] / base[item], square[item] / base[item] ** 2
        found[item] = mean * variance / (variance + noise)
    return found


def test_the_surplus_is_that_of_a_plain_loop():
    """The rates at ranks 2 and 3 rise, so both are expected to be their mean."""
    lists = [([0, 1, 2], {0, 2}), ([1, 0, 2], {1, 2}), ([2, 3, 4], {2}), ([4, 0, 3], set())]
    shown = [(person, items, liked) for person in range(30) for items, liked in lists]
    found = surplus(_outcomes(*shown), SIZE)
    np.testing.assert_allclose(found, _by_loop(shown, [3 / 4, 1 / 4, 1 / 4]), rtol=1e-9)
    assert found[2] > 1 and found[4] < -0.5 and not found[5:].any()


def test_people_who_accept_more_are_expected_to():
    """Half of the people accept nothing. Without a change, items that only eager people are shown gain nothing."""
    lists = [([0, 1, 2], {0, 2}), ([1, 0, 2], {1, 2}), ([2, 3, 4], {2}), ([4, 0, 3], set())]
    shown = [(person, items, liked if person % 2 else set()) for person in range(30) for items, liked in lists]
    np.testing.assert_allclose(surplus(_outcomes(*shown), SIZE), _by_loop(shown, [3 / 8, 1 / 8, 1 / 8]), rtol=1e-9)

    rng, half, unchanged = np.random.default_rng(4), SIZE // 2, []
    for person in np.repeat(np.arange(120), 30).tolist():
        is_eager = person < 20
        items = (half * is_eager + rng.permutation(half)[:LENGTH]).tolist()
        unchanged.append((person, items, {item for item in items if rng.random() < (0.4 if is_eager else 0.1)}))
    assert np.abs(surplus(_outcomes(*unchanged), SIZE)).max() < 0.1


def test_an_item_gains_nothing_from_being_shown_or_from_its_rank():
    """Items 0 to 9 are always shown, item 0 always first: it is accepted most, as anything there would be."""
    rng = np.random.default_rng(5)
    lists = [[0, *(1 + rng.permutation(9))] for _ in range(3000)]
    shown = [
        (n % 300, items, {i for i, p in zip(items, RATES, strict=True) if rng.random() < p})
        for n, items in enumerate(lists)
    ]
    assert np.abs(surplus(_outcomes(*shown), SIZE)).max() == 0


def test_without_a_change_it_is_nearly_nothing_and_after_one_it_is_that_change():
    none = np.ones(SIZE)
    for seed in range(5):
        assert np.abs(surplus(_outcomes(*_shown(300, 10, none, seed)), SIZE)).max() < 0.05
    changed = np.where(np.arange(SIZE) < 20, 0.5, 1.5)
    found = surplus(_outcomes(*_shown(300, 10, changed)), SIZE)
    assert found[:20].max() < -0.5 < 0.5 < found[20:].min()


def _weights(guidance: Guidance, shown: list[tuple[int, list[int], set[int]]]) -> np.ndarray:
    """Return the log weights of all items for a prompt, less their mean."""
    asked = make_row("x", [], "space horror", user_id="other")
    (weights,) = guidance.with_feedback(_outcomes(*shown)).log_weights([asked])
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
