"""The users who talk to a service, what they do to a real one, and what the refresh of the loop learns from."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from benchmarks import loop
from benchmarks.simulate import Plan, Simulated, main, move_to, simulate, weekly
from benchmarks.simulated_users import Audience, Visit
from convrec.data.mentions import Mentions
from convrec.data.sources.synthetic import SHIFT_MONTH
from convrec.project.config.params import load_params
from convrec.project.config.profiles import apply_profile
from convrec.project.errors import InputError, Unavailable
from convrec.service.app.keys import Keys, new_key
from convrec.service.app.service import Limits
from convrec.service.feedback import FeedbackRecorder
from convrec.service.feedback.records import new_answer_id
from convrec.service.feedback.store import FeedbackStore
from tests.service.app.serving import Served, make_service, serve
from tests.service.recommending import make_recommender
from tests.small_project import ROOT

PARAMS = load_params(ROOT / "params.yaml")
AUDIENCE = Audience(PARAMS, 1)
DAY = date(2022, 1, 8)


def _visits(audience: Audience, start: date, num_days: int = 5) -> list[Visit]:
    return [visit for number in range(num_days) for visit in audience.visits(30, start + timedelta(days=number))]


def test_the_same_users_ask_once_a_day_whatever_is_asked_before():
    visits = AUDIENCE.visits(30, DAY)
    assert Audience(PARAMS, 1).visits(30, DAY) == visits != Audience(PARAMS, 2).visits(30, DAY)
    assert AUDIENCE.visits(10, DAY) == [visit for visit in visits if visit.user_id < "user-00010"]
    assert sorted(visit.user_id for visit in visits) == [f"user-{number:05d}" for number in range(30)]
    times, start = [visit.time for visit in visits], datetime(2022, 1, 8, tzinfo=UTC)
    assert times == sorted(times) and start <= times[0] and times[-1] < start + timedelta(days=1)


def test_accepted_are_the_liked_items_that_are_looked_at():
    visit = Visit("u", datetime(2022, 1, 1, tzinfo=UTC), [], 3, frozenset("bdz"))
    assert visit.accepted(["a", "b", "c", "d"]) == ["b"]
    assert visit.accepted(["z", "d"]) == ["z", "d"] and visit.accepted([]) == []


def test_named_films_are_not_accepted():
    catalog, mentions = AUDIENCE.catalog, Mentions(AUDIENCE.catalog)
    for visit in _visits(AUDIENCE, DAY):
        named = catalog.indices_of_titles(mentions.titles(message["content"] for message in visit.messages))
        assert not visit.liked & {catalog.items[film].id for film in named}


@pytest.mark.parametrize(
    ("shift_date", "day", "is_new"),
    [
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
    parts = popularity[:SHIFT_MONTH], popularity[SHIFT_MONTH:]
    old, new = (np.corrcoef(counts, part.mean(axis=0))[0, 1] for part in parts)
    assert (new > old) == is_new


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


def _plan(served: Served, **options) -> Plan:
    return Plan(f"http://127.0.0.1:{served.port}", 1, 1, DAY, 6, **options)


def test_what_users_accept_is_recorded_at_the_simulated_time(model, recorder, url, here, monkeypatch, capsys):
    """Events keep the real time from the answer on. Users whom the service has no room for wait as it tells them."""
    (here / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.setattr("benchmarks.simulated_users._NUM_LIKED", (150, 151))  # an untrained model has hits
    with serve(make_service({"champion": model}, recorder, Limits(max_requests=2)), has_page=False) as served:
        address = f"http://127.0.0.1:{served.port}"
        main(["--url", address, "--start", str(DAY), "--users", "3", "--days", "1", "-n", "6", "--feedback", url])
        assert b'status="429"' in served.text("/metrics")
    visits = pl.read_parquet(here / "runs" / "simulation.parquet")
    assert f"| {DAY} | 3 " in capsys.readouterr().out and visits["answer_id"].n_unique() == 3
    expected = {(visit.user_id, visit.time): visit for visit in AUDIENCE.visits(3, DAY)}
    store, start = FeedbackStore(url), datetime(2022, 1, 8, tzinfo=UTC)
    outcomes = store.outcomes(start, start + timedelta(days=1)).sort("rank")
    lists = outcomes.group_by("answer_id").agg("item_id", "accepted", pl.first("time", "user_id"))
    assert lists.height == 3
    for row in lists.join(visits.select("answer_id", "num_accepted"), on="answer_id").iter_rows(named=True):
        accepted = [item for item, is_accepted in zip(row["item_id"], row["accepted"], strict=True) if is_accepted]
        assert accepted == expected[row["user_id"], row["time"]].accepted(row["item_id"])
        assert row["num_accepted"] == len(accepted)
    answered = store.answers().select("answer_id", answered="time")
    waited = store.events().join(answered, on="answer_id").select(pl.col("time") - pl.col("answered"))["time"]
    assert visits["num_accepted"].sum() == len(waited) > 0
    assert waited.is_between(timedelta(0), timedelta(minutes=2)).all()


def test_an_error_does_not_show_the_password_of_the_service(here):
    (here / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    with pytest.raises(SystemExit, match="^http://[*]{3}@127.0.0.1:9/?: no answer") as ended:
        main(["--url", "http://me:s3cret@127.0.0.1:9", "--start", str(DAY), "--users", "1", "--days", "1"])
    assert "s3cret" not in str(ended.value)


def test_weeks_are_counted_from_the_first_day():
    times = [datetime(2022, 1, 3, tzinfo=UTC) + timedelta(days=n) for n in (0, 6, 6, 7)]
    visits = pl.DataFrame(
        {"time": times, "user_id": ["a", "a", "b", "b"], "num_accepted": [0, 3, 0, 1], "num_items": [5, 5, 0, 5]}
    )
    assert weekly(visits).rows() == [
        (date(2022, 1, 3), 3, 2, 1.0, pytest.approx(1 / 3), 1),
        (date(2022, 1, 10), 1, 1, 1.0, 1.0, 0),
    ]


def test_what_the_service_refuses_is_told(model, recorder, url, tmp_path):
    keys = tmp_path / "keys"
    key = new_key(keys, "tester")
    with serve(make_service({"champion": model}, recorder), has_page=False, keys=Keys(keys)) as served:
        with pytest.raises(InputError, match="status 401.*API key is missing or wrong"):
            simulate(_plan(served), AUDIENCE)
        assert len(simulate(_plan(served, key=key), AUDIENCE)) == 1
        plan = _plan(served)
    with pytest.raises(Unavailable, match="no answer"):
        simulate(plan, AUDIENCE)
    for found, feedback, message in (
        (make_recommender(), recorder, "is not a film of the embedded world"),
        (model, None, "the service records no feedback"),
    ):
        with (
            serve(make_service({"champion": found}, feedback), has_page=False) as served,
            pytest.raises(InputError, match=message),
        ):
            simulate(_plan(served), AUDIENCE)
    with pytest.raises(Unavailable, match="1 answers or events have not arrived.*give the database of the service"):
        move_to(url, {new_answer_id(datetime.now(UTC)): Simulated(datetime.now(UTC), 0)}, patience=0.1)


def test_a_refresh_keeps_the_world_of_the_users(here, monkeypatch):
    """With other months of synthetic data, users and model would be of two worlds, and the model would know April."""
    (here / "profiles").symlink_to(ROOT / "profiles")
    apply_profile("embedded", ["data.synthetic.num_months=3", "data.synthetic.num_conversations=5400"])
    before = load_params()
    monkeypatch.setattr(loop, "_run", lambda *arguments, **options: "")
    version = SimpleNamespace(get_model_version_by_alias=lambda *name: SimpleNamespace(version="2"))
    monkeypatch.setattr(loop.mlflow, "MlflowClient", lambda: version)
    loop.Loop("sqlite:///f.db")._retrain(date(2022, 4, 15))
    after = load_params()
    assert after.data.synthetic == before.data.synthetic
    assert after.data.source == ["synthetic", "feedback"] and after.rank_grpo.since == "2022-04"
