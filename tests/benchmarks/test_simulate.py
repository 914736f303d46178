"""Simulated users against a real server with a small model and a real feedback database."""

import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from benchmarks.simulate import Plan, Simulated, main, move_to, simulate, weekly
from benchmarks.simulated_users import Audience
from convrec.project.config.params import load_params
from convrec.project.errors import InputError, Unavailable
from convrec.service.app.keys import Keys, new_key
from convrec.service.app.service import Limits
from convrec.service.feedback import FeedbackRecorder
from convrec.service.feedback.records import Answer, new_answer_id
from convrec.service.feedback.store import FeedbackStore
from tests.service.app.serving import Served, make_service, serve
from tests.service.recommending import make_recommender
from tests.small_project import ROOT

AUDIENCE = Audience(load_params(ROOT / "params.yaml"), 1)
START = date(2022, 1, 3)
NOON = datetime(2022, 1, 3, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def model():
    return make_recommender(0, AUDIENCE.catalog)


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/feedback.db"


@pytest.fixture
def recorder(url, tmp_path) -> Iterator[FeedbackRecorder]:
    recorder = FeedbackRecorder(tmp_path / "journal", url)
    yield recorder
    recorder.close()


@pytest.fixture
def served(model, recorder) -> Iterator[Served]:
    """A service that takes two requests at a time."""
    with serve(make_service({"champion": model}, recorder, Limits(max_requests=2)), has_page=False) as running:
        yield running


def _plan(served: Served, num_users: int = 1, num_days: int = 1, **options) -> Plan:
    return Plan(f"http://127.0.0.1:{served.port}", num_users, num_days, START, 6, **options)


def test_what_users_accept_is_recorded_at_the_simulated_time(served, url, monkeypatch):
    """More users ask at once than the service takes: they wait as it tells them, and none is lost.

    Their events keep the real time from the answer on.
    """
    monkeypatch.setattr("benchmarks.simulated_users._NUM_LIKED", (150, 151))  # an untrained model has hits
    visits = simulate(_plan(served, 6, 2, feedback=url), AUDIENCE)
    assert b'status="429"' in served.text("/metrics")
    assert len(visits) == 12 and visits["answer_id"].n_unique() == 12
    wanted = [visit for n in (0, 1) for visit in AUDIENCE.visits(6, START + timedelta(n))]
    expected = {(visit.user_id, visit.time): visit for visit in wanted}
    store = FeedbackStore(url)
    outcomes = store.outcomes(datetime(2022, 1, 3, tzinfo=UTC), datetime(2022, 1, 5, tzinfo=UTC))
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
    assert visits["num_accepted"].sum() == len(store.events()) > 0
    times = dict(store.answers().select("answer_id", "time").iter_rows())
    assert all(
        timedelta(0) <= row["time"] - times[row["answer_id"]] < timedelta(minutes=2)
        for row in store.events().iter_rows(named=True)
    )


def test_the_command_prints_a_table_by_week(served, url, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    options = ["--url", f"http://127.0.0.1:{served.port}", "--users", "1", "--days", "8", "-n", "2", "--feedback", url]
    main([*options, "--start", "2022-03-28", "--shift-date", "2022-04-01"])
    printed = capsys.readouterr().out
    assert "| 2022-03-28 | 7 " in printed and "| 2022-04-04 | 1 " in printed
    assert len(pl.read_parquet(tmp_path / "runs" / "simulation.parquet")) == 8
    days = [date(2022, 3, 28) + timedelta(n) for n in range(8)]
    assert FeedbackStore(url).answers()["time"].dt.date().to_list() == days


def test_weeks_are_counted_from_the_first_day():
    times = [datetime(2022, 1, 3, tzinfo=UTC) + timedelta(days=n) for n in (0, 6, 6, 7)]
    visits = pl.DataFrame(
        {"time": times, "user_id": ["a", "a", "b", "b"], "num_accepted": [0, 3, 0, 1], "num_items": [5, 5, 0, 5]}
    )
    assert weekly(visits).rows() == [
        (date(2022, 1, 3), 3, 2, 1.0, pytest.approx(1 / 3), 1),
        (date(2022, 1, 10), 1, 1, 1.0, 1.0, 0),
    ]


def test_what_the_service_refuses_is_told(model, recorder, tmp_path):
    keys = tmp_path / "keys"
    key = new_key(keys, "tester")
    with serve(make_service({"champion": model}, recorder), has_page=False, keys=Keys(keys)) as served:
        with pytest.raises(InputError, match="status 401.*API key is missing or wrong"):
            simulate(_plan(served), AUDIENCE)
        assert len(simulate(_plan(served, key=key), AUDIENCE)) == 1
        plan = _plan(served)
    with pytest.raises(Unavailable, match="no answer"):
        simulate(plan, AUDIENCE)
    foreign = make_recommender()
    with (
        serve(make_service({"champion": foreign}, recorder), has_page=False) as served,
        pytest.raises(InputError, match="is not a film of the embedded world"),
    ):
        simulate(_plan(served), AUDIENCE)
    with (
        serve(make_service({"champion": model}), has_page=False) as silent,
        pytest.raises(InputError, match="the service records no feedback"),
    ):
        simulate(_plan(silent), AUDIENCE)


def test_answers_that_arrive_late_are_waited_for_and_others_stay(url):
    store, now = FeedbackStore(url), datetime.now(UTC)
    moved, other = (Answer(new_answer_id(now), now, None, None, None, 0.1, None, ()) for _ in range(2))
    store.write([other], [])
    threading.Timer(0.3, lambda: FeedbackStore(url).write([moved], [])).start()
    move_to(url, {moved.answer_id: Simulated(NOON, 0)})
    times = dict(store.answers().select("answer_id", "time").iter_rows())
    assert times[moved.answer_id] == NOON and times[other.answer_id] > NOON


def test_another_database_is_named(url):
    FeedbackStore(url).counts()
    with pytest.raises(Unavailable, match="1 answers or events have not arrived.*give the database of the service"):
        move_to(url, {new_answer_id(NOON): Simulated(NOON, 0)}, patience=0.2)
