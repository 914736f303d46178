"""The users who talk to a service: what they want depends on world, seed and date alone."""

from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from benchmarks.simulated_users import PATIENCE, Audience, Visit
from convrec.data.mentions import Mentions
from convrec.data.sources.synthetic import SHIFT_MONTH
from convrec.project.config.params import load_params
from tests.small_project import ROOT

PARAMS = load_params(ROOT / "params.yaml")
DAY = date(2022, 1, 8)


@pytest.fixture(scope="module")
def audience() -> Audience:
    return Audience(PARAMS, 1)


def _visits(audience: Audience, start: date, num_days: int = 5) -> list[Visit]:
    return [visit for number in range(num_days) for visit in audience.visits(30, start + timedelta(days=number))]


def test_the_same_users_ask_once_a_day_whatever_is_asked_before(audience):
    visits = audience.visits(30, DAY)
    assert Audience(PARAMS, 1).visits(30, DAY) == visits != Audience(PARAMS, 2).visits(30, DAY)
    assert audience.visits(10, DAY) == [visit for visit in visits if visit.user_id < "user-00010"]
    assert sorted(visit.user_id for visit in visits) == [f"user-{number:05d}" for number in range(30)]
    times, start = [visit.time for visit in visits], datetime(2022, 1, 8, tzinfo=UTC)
    assert times == sorted(times) and start <= times[0] and times[-1] < start + timedelta(days=1)


def test_accepted_are_the_liked_items_that_are_looked_at():
    visit = Visit("u", datetime(2022, 1, 1, tzinfo=UTC), [], 3, frozenset("bdz"))
    assert visit.accepted(["a", "b", "c", "d"]) == ["b"]
    assert visit.accepted(["z", "d"]) == ["z", "d"] and visit.accepted([]) == []


def test_ranks_are_looked_at_as_the_patience_says(audience):
    """The share of users who look at rank k is PATIENCE^(k-1); four standard deviations of 1,500 visits."""
    looked = np.array([visit.num_examined for visit in _visits(audience, date(2022, 1, 1), 50)])
    for rank in (1, 2, 5, 10):
        expected = PATIENCE ** (rank - 1)
        spread = 4 * (expected * (1 - expected) / len(looked)) ** 0.5
        assert (looked >= rank).mean() == pytest.approx(expected, abs=spread)


def test_named_films_are_not_accepted(audience):
    catalog, mentions = audience.catalog, Mentions(audience.catalog)
    for visit in _visits(audience, DAY):
        named = catalog.indices_of_titles(mentions.titles(message["content"] for message in visit.messages))
        assert not visit.liked & {catalog.items[film].id for film in named}


@pytest.mark.parametrize(
    ("shift_date", "day", "is_new"),
    [
        (None, date(2022, 2, 10), False),
        (None, date(2021, 12, 31), False),
        (None, date(2030, 1, 1), True),
        (date(2022, 1, 20), date(2022, 1, 19), False),
        (date(2022, 1, 20), date(2022, 1, 20), True),
    ],
)
def test_what_users_like_follows_the_popularity_of_the_old_or_the_new_audience(shift_date, day, is_new):
    audience = Audience(PARAMS, 1, shift_date)
    visits = _visits(audience, day, 12 if shift_date is None else 1)
    counts = np.array([sum(item.id in visit.liked for visit in visits) for item in audience.catalog.items])
    popularity = audience.world.popularity
    old, new = (
        np.corrcoef(counts, part.mean(axis=0))[0, 1] for part in (popularity[:SHIFT_MONTH], popularity[SHIFT_MONTH:])
    )
    assert (new > old) == is_new
