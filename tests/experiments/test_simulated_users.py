"""The users who talk to a service: what they want depends on world, seed and date alone."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from convrec.data.mentions import Mentions
from convrec.data.sources.synthetic import SHIFT_MONTH, World
from convrec.experiments.simulated_users import PATIENCE, Audience, Visit, embedded_catalog

CATALOG = embedded_catalog()
WORLD = World(CATALOG, 42, 6)
IDS = [item.id for item in CATALOG.items]
FIRST = "2022-01"


def _visits(audience: Audience, start: date, num_days: int = 5) -> list[Visit]:
    return [visit for number in range(num_days) for visit in audience.visits(30, start + timedelta(days=number))]


def test_the_same_users_whatever_is_asked_before():
    day = date(2022, 1, 8)
    audience = Audience(WORLD, FIRST, 1)
    later = _visits(audience, day, 2)
    assert _visits(Audience(WORLD, FIRST, 1), day, 2) == later
    assert audience.visits(10, day) == sorted(
        (visit for visit in audience.visits(30, day) if visit.user_id < "user-00010"), key=lambda visit: visit.time
    )
    assert _visits(Audience(WORLD, FIRST, 2), day, 2) != later


def test_each_user_asks_once_a_day_and_at_a_time_of_it():
    visits = Audience(WORLD, FIRST, 1).visits(30, date(2022, 1, 8))
    assert sorted(visit.user_id for visit in visits) == [f"user-{number:05d}" for number in range(30)]
    start = datetime(2022, 1, 8, tzinfo=UTC)
    assert all(start <= visit.time < start + timedelta(days=1) for visit in visits)
    assert [visit.time for visit in visits] == sorted(visit.time for visit in visits)


def test_accepted_are_the_liked_items_that_are_looked_at():
    visit = Visit("u", datetime(2022, 1, 1, tzinfo=UTC), [], 3, frozenset("bdz"))
    assert visit.accepted(["a", "b", "c", "d"]) == ["b"]
    assert visit.accepted(["z", "d"]) == ["z", "d"]
    assert visit.accepted([]) == []


def test_ranks_are_looked_at_as_the_patience_says():
    """The share of users who look at rank k is PATIENCE^(k-1); four standard deviations of 1,500 visits."""
    looked = np.array([visit.num_examined for visit in _visits(Audience(WORLD, FIRST, 1), date(2022, 1, 1), 50)])
    for rank in (1, 2, 5, 10):
        expected = PATIENCE ** (rank - 1)
        spread = 4 * (expected * (1 - expected) / len(looked)) ** 0.5
        assert (looked >= rank).mean() == pytest.approx(expected, abs=spread)


def test_named_films_are_not_accepted():
    mentions = Mentions(CATALOG)
    for visit in _visits(Audience(WORLD, FIRST, 3), date(2022, 1, 1)):
        named = CATALOG.indices_of_titles(mentions.titles(message["content"] for message in visit.messages))
        assert not visit.liked & {IDS[film] for film in named}


@pytest.mark.parametrize(
    ("shift_date", "day", "month"),
    [
        (None, date(2022, 2, 10), 1),
        (None, date(2021, 12, 31), 0),
        (None, date(2030, 1, 1), 5),
        (date(2022, 1, 20), date(2022, 1, 19), SHIFT_MONTH - 1),
        (date(2022, 1, 20), date(2022, 1, 20), SHIFT_MONTH),
    ],
)
def test_the_popularity_is_that_of_the_month(shift_date, day, month):
    """What users like follows the popularity of the old or of the new audience."""
    visits = _visits(Audience(WORLD, FIRST, 1, shift_date), day, 12 if shift_date is None else 1)
    counts = np.array([sum(item in visit.liked for visit in visits) for item in IDS])
    before, after = (WORLD.popularity[:SHIFT_MONTH], WORLD.popularity[SHIFT_MONTH:])
    fits = [np.corrcoef(counts, popularity.mean(axis=0))[0, 1] for popularity in (before, after)]
    assert (fits[1] > fits[0]) == (month >= SHIFT_MONTH)
