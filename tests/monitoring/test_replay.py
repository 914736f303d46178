"""Replays of logged answers: which are used, what supports a list, and the estimates against those by hand."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from convrec.data.catalog import Catalog
from convrec.errors import InputError
from convrec.evaluation.comparison import Interval
from convrec.feedback.records import Answer, Event, Shown, new_answer_id
from convrec.feedback.store import FeedbackStore
from convrec.monitoring.replay import Answered, has_support, read_logged, replay
from convrec.similarity.embedding import TfidfEmbedder

NOW = datetime(2022, 4, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SAID = [{"role": "user", "content": "a heist, please"}]


@pytest.fixture
def store(tmp_path) -> FeedbackStore:
    return FeedbackStore(f"sqlite:///{tmp_path / 'feedback.db'}")


def _answer(lists: dict[str, list[tuple[str, str]]], messages=SAID, days: int = 1, **more) -> Answer:
    """Return an answer with lists of (version, item) by name; propensities are 1."""
    time = NOW - days * DAY
    shown = tuple(Shown(name, r, item, v, 1.0) for name, own in lists.items() for r, (v, item) in enumerate(own, 1))
    values = {"user_id": None, "experiment": None, "arm": None, "is_explored": False, "latency_seconds": 0.1, **more}
    return Answer(new_answer_id(time), time, messages=messages, shown=shown, **values)


def test_only_single_lists_of_the_version_with_their_conversation_are_used(store):
    own = [("3", "heat"), ("3", "up")]
    used = _answer({"": own}, user_id="ann", denied=("dune",), allowed=("heat", "up"))
    others = [
        _answer({"": own}, messages=None),
        _answer({"": [("2", "heat"), ("2", "up")]}),
        _answer({"interleaved": [("3", "heat"), ("4", "up")]}),
        _answer({"champion": own, "challenger": [("4", "up")]}),
        _answer({"": own}, days=40),
        _answer({}),
    ]
    assert not store.write([used, *others], [Event("e", used.answer_id, "", "up", "accepted", NOW)])
    found = read_logged(store, "3", NOW - 30 * DAY, NOW)
    assert found == [Answered("ann", False, SAID, ["heat", "up"], [1.0, 1.0], [False, True], ("dune",), ["heat", "up"])]


@pytest.mark.parametrize(
    ("lists", "messages", "message"),
    [
        (None, SAID, "no answers were recorded from 2022-03-02 to 2022-04-01; give another --window"),
        ({"": [("2", "heat")]}, SAID, "none of the 1 answers .* shows a list of version 3 alone"),
        ({"": [("3", "heat")]}, None, "the conversations of the 1 answers of version 3 .* are not stored; serve with"),
    ],
)
def test_what_is_missing_is_told(store, lists, messages, message):
    store.write([] if lists is None else [_answer(lists, messages)], [])
    with pytest.raises(InputError, match=message):
        read_logged(store, "3", NOW - 30 * DAY, NOW)


def test_support_is_what_exploration_could_show():
    fixed = Answered("a", False, SAID, ["x", "y"], [1.0, 1.0], [False, False])
    explored = fixed._replace(propensities=[0.75, 0.75])
    assert has_support(fixed, ["x", "z"]) == [True, False] and has_support(fixed, ["y", "x"]) == [False, False]
    assert has_support(explored, ["y", "x"]) == [True, True] and has_support(explored, ["y", "z"]) == [True, False]


def test_the_estimates_by_hand(catalog: Catalog):
    """Explored half the time: items at their own rank have the propensity 0.75, others 0.25.

    The first answer was shuffled, the second not; both accept their first item. The challenger lists the reverse order:
    its weights are 1 / 0.25 for the shuffled answer.
    """
    heat, up, alien = (catalog.items[place].id for place in (0, 3, 4))
    logged = [
        Answered("a", True, SAID, [up, heat], [0.25, 0.25], [True, False]),
        Answered("b", False, SAID, [heat, up], [0.75, 0.75], [True, False]),
    ]
    found = replay(logged, [[up, heat], [up, alien]], catalog, TfidfEmbedder, 50, 0)
    assert found.challenger["ips"].mean == pytest.approx((4 + 0) / 2)
    assert found.champion.mean == 1 and found.champion.n == 1
    assert found.challenger["snips"].mean == pytest.approx(2 * 4 / 8)
    assert found.effective_size == pytest.approx(1.0) and found.without_support == pytest.approx(1 / 4)
    assert (found.answers, found.persons) == (2, 2)
    for name in ("ips", "snips", "dr"):
        gain = found.challenger[name].mean - found.champion.mean
        assert found.differences[name].mean == pytest.approx(gain)


def _world(rng: np.random.Generator, catalog: Catalog, explore: float, number: int) -> list[Answered]:
    """Return answers that list items 0 to 4; the probability to accept item i at rank k is 0.9 (i + 1) / (5 k)."""
    logged = []
    for place in range(number):
        is_explored = bool(rng.random() < explore)
        order = rng.permutation(5) if is_explored else np.arange(5)
        propensity = [(1 - explore) * (item == rank) + explore / 5 for rank, item in enumerate(order)]
        accepted = [bool(rng.random() < _probability(item, rank)) for rank, item in enumerate(order)]
        ids = [catalog.items[item].id for item in order]
        logged.append(Answered(f"u{place // 2}", is_explored, SAID, ids, propensity, accepted))
    return logged


def _probability(item: int, rank: int) -> float:
    return 0.9 * (item + 1) / 5 / (rank + 1)


def _is_near(found: Interval, truth: float) -> bool:
    """Return whether an estimate is within three standard errors."""
    return abs(found.mean - truth) <= 3 / 1.96 * (found.high - found.low) / 2


def test_every_estimator_finds_the_value_of_another_order(catalog: Catalog):
    logged = _world(np.random.default_rng(0), catalog, 0.5, 6000)
    reverse = [item.id for item in catalog.items[::-1]]
    found = replay(logged, [reverse] * len(logged), catalog, TfidfEmbedder, 200, 0)
    truth = sum(_probability(4 - rank, rank) for rank in range(5))
    served = sum(_probability(rank, rank) for rank in range(5))
    for name in ("ips", "snips", "dr"):
        assert _is_near(found.challenger[name], truth)
        assert found.differences[name].low > 0
    assert _is_near(found.champion, served)
    assert found.without_support == 0 and 500 < found.effective_size < 3000


def test_the_same_lists_do_not_differ(catalog: Catalog):
    same = [item.id for item in catalog.items]
    for explore in (0.0, 0.3):
        logged = _world(np.random.default_rng(1), catalog, explore, 1000)
        found = replay(logged, [same] * len(logged), catalog, TfidfEmbedder, 200, 0)
        for gain in found.differences.values():
            assert _is_near(gain, 0) if explore else gain[:3] == pytest.approx((0, 0, 0))


def test_answers_that_are_all_explored_are_told(catalog: Catalog):
    logged = [answer._replace(is_explored=True) for answer in _world(np.random.default_rng(3), catalog, 0.5, 10)]
    with pytest.raises(InputError, match="all answers are explored"):
        replay(logged, [[catalog.items[0].id]] * 10, catalog, TfidfEmbedder, 50, 0)


def test_without_exploration_another_order_has_no_support(catalog: Catalog):
    logged = _world(np.random.default_rng(2), catalog, 0.0, 100)
    moved = [[item.id for item in (*catalog.items[1:], catalog.items[0])]] * len(logged)
    found = replay(logged, moved, catalog, TfidfEmbedder, 50, 0)
    assert found.without_support == 1 and found.effective_size == 0 and found.challenger["ips"].mean == 0
