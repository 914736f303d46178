"""Simulated users against a real server with a small model and a real feedback database."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from convrec.data.sources.synthetic import World
from convrec.errors import InputError, Unavailable
from convrec.experiments.simulated_users import Audience, embedded_catalog
from convrec.experiments.simulation import Plan, simulate, week_rows, weekly
from convrec.feedback import FeedbackRecorder
from convrec.feedback.store import FeedbackStore
from convrec.serving.app.keys import Keys, new_key
from convrec.serving.app.service import Limits
from tests.project import ROOT
from tests.serving.app.serving import Served, make_service, serve
from tests.serving.recommending import make_recommender

CATALOG = embedded_catalog()
KNOWN = frozenset(item.id for item in CATALOG.items)
AUDIENCE = Audience(World(CATALOG, 42, 6), "2022-01", 1)
START = date(2022, 1, 3)


@pytest.fixture(scope="module")
def model():
    return make_recommender(0, CATALOG)


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/feedback.db"


@pytest.fixture
def served(model, url, tmp_path) -> Iterator[Served]:
    """A service that takes two requests at a time."""
    recorder = FeedbackRecorder(tmp_path / "journal", url)
    with serve(make_service({"champion": model}, recorder, Limits(max_requests=2)), has_page=False) as running:
        yield running
    recorder.close()


def _plan(served: Served, num_users: int = 6, num_days: int = 1, **changes) -> Plan:
    plan = {"start": START, "num_items": 6, **changes}
    return Plan(f"http://127.0.0.1:{served.port}", num_users, num_days, **plan)


def test_what_users_accept_is_recorded_at_the_simulated_time(served, url, monkeypatch):
    """More users ask at once than the service takes: they wait as it tells them, and none is lost."""
    monkeypatch.setattr("convrec.experiments.simulated_users._NUM_LIKED", (150, 151))  # an untrained model has hits
    visits = simulate(_plan(served, num_days=2, feedback=url), AUDIENCE, KNOWN)
    assert b'status="429"' in served.text("/metrics")
    assert len(visits) == 12 and visits["answer_id"].n_unique() == 12
    expected = {
        (visit.user_id, visit.time): visit for n in (0, 1) for visit in AUDIENCE.visits(6, START + timedelta(n))
    }
    outcomes = FeedbackStore(url).outcomes(datetime(2022, 1, 3, tzinfo=UTC), datetime(2022, 1, 5, tzinfo=UTC))
    lists = (
        outcomes.sort("rank")
        .group_by("answer_id", maintain_order=True)
        .agg("item_id", "accepted", pl.first("time", "user_id"))
    )
    assert len(lists) == 12
    for row in lists.iter_rows(named=True):
        visit = expected[row["user_id"], row["time"]]
        accepted = [item for item, is_accepted in zip(row["item_id"], row["accepted"], strict=True) if is_accepted]
        assert accepted == visit.accepted(row["item_id"])
        (told,) = visits.filter(pl.col("answer_id") == row["answer_id"]).iter_rows(named=True)
        assert (told["num_accepted"], told["num_items"]) == (len(accepted), 6)
    assert visits["num_accepted"].sum() > 0


def test_the_same_users_are_asked_again(served):
    first, again = (simulate(_plan(served, 3), AUDIENCE, KNOWN).drop("answer_id") for _ in range(2))
    assert first.equals(again)


def test_the_command_prints_a_table_by_week(served, url, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    options = ("--url", f"http://127.0.0.1:{served.port}", "--users", 1, "--days", 8, "-n", 2, "--feedback", url)
    ended = cli("simulate", *options, "--start", "2022-03-28", "--shift-date", "2022-04-01")
    assert ended.status == 0, ended.err
    assert "2022-03-28 " in ended.out and "2022-04-04 " in ended.out
    assert len(pl.read_parquet(tmp_path / "runs" / "simulation.parquet")) == 8
    assert FeedbackStore(url).answers()["time"].dt.date().to_list() == [
        date(2022, 3, 28) + timedelta(n) for n in range(8)
    ]


def test_weeks_are_counted_from_the_first_day():
    times = [datetime(2022, 1, 3, tzinfo=UTC) + timedelta(days=n) for n in (0, 6, 6, 7)]
    visits = pl.DataFrame(
        {"time": times, "user_id": ["a", "a", "b", "b"], "num_accepted": [0, 3, 0, 1], "num_items": [5, 5, 0, 5]}
    )
    assert week_rows(weekly(visits)) == [
        ("2022-01-03", "3", "2", "1.000", "33.3%", "1"),
        ("2022-01-10", "1", "1", "1.000", "100.0%", "0"),
    ]


def test_what_the_service_refuses_is_told(model, tmp_path):
    keys = tmp_path / "keys"
    key = new_key(keys, "tester")
    recorder = FeedbackRecorder(tmp_path / "journal", f"sqlite:///{tmp_path}/feedback.db")
    with serve(make_service({"champion": model}, recorder), has_page=False, keys=Keys(keys)) as served:
        with pytest.raises(InputError, match="status 401.*API key is missing or wrong"):
            simulate(_plan(served, 1, 1), AUDIENCE, KNOWN)
        assert len(simulate(_plan(served, 1, 1, key=key), AUDIENCE, KNOWN)) == 1
        with pytest.raises(InputError, match="is not a film of the embedded world"):
            simulate(_plan(served, 1, 1, key=key), AUDIENCE, frozenset())
        plan = _plan(served, 1, 1)
    recorder.close()
    with pytest.raises(Unavailable, match="no answer"):
        simulate(plan, AUDIENCE, KNOWN)
    with (
        serve(make_service({"champion": model}), has_page=False) as silent,
        pytest.raises(InputError, match="the service records no feedback"),
    ):
        simulate(_plan(silent, 1, 1), AUDIENCE, KNOWN)
