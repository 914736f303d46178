"""Experiments of the registered model, against a real MLflow store and a real feedback database."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import mlflow
import pytest
from prefect.logging import disable_run_logger

from convrec.data.catalog import Catalog, Item
from convrec.project.errors import InputError
from convrec.registry.experiment import (
    EXPERIMENT_TAG,
    RESULT_TAG,
    end_experiment,
    finish,
    read_experiment,
    read_result,
    recorded_result,
    running_experiment,
    start_experiment,
)
from convrec.registry.moves import roll_back
from convrec.registry.policy import describe_experiment
from convrec.registry.versions import model_name
from convrec.service.feedback import Answer, Event, Shown
from convrec.service.feedback.store import FeedbackStore
from tasks.champion import watch_experiment
from tests.answers import make_answer
from tests.registry.experimenting import START, answer_users
from tests.registry.registered import add_version, promote_in_turn


@pytest.fixture
def champion(client) -> mlflow.MlflowClient:
    """A store in which version 1 of 4 is the champion."""
    promote_in_turn(client, "1")
    return client


@pytest.fixture
def store(tmp_path) -> FeedbackStore:
    return FeedbackStore(f"sqlite:///{tmp_path}/feedback/feedback.db")


def test_one_at_a_time_is_started_read_and_ended(champion):
    assert read_experiment(champion) is None
    started = start_experiment(champion, "2", 0.2, "ops")
    assert read_experiment(champion) == started
    assert (started.champion, started.challenger, started.share, started.num_moves) == ("1", "2", 0.2, 1)
    assert running_experiment(champion, "1") == started
    assert running_experiment(champion, "3") is None, "against another champion, it does not run"
    with pytest.raises(InputError, match=f"experiment {started.id} of version 2 is running"):
        start_experiment(champion, "3", 0.5, "ops")
    with pytest.raises(InputError, match="experiment ab-2-old has ended"):
        end_experiment(champion, "ab-2-old", "worse", "ops")
    assert read_experiment(champion) == started
    ended = end_experiment(champion, started.id, "enough", "ops")
    assert (ended.reason, ended.is_running) == ("enough", False)
    assert read_experiment(champion) == ended and running_experiment(champion, "1") is None
    assert start_experiment(champion, "3", 0.9, "ops").challenger == "3"


@pytest.mark.parametrize(
    ("challenger", "share", "message"),
    [
        ("1", 0.5, "--challenger 1: this version is the champion"),
        ("9", 0.5, "models:/convrec-movies/9: not in the registry.*convrec registry list"),
        ("2", 1.0, "--share 1: give a number above 0 and below 1"),
        ("2", 0.0, "--share 0: give a number above 0 and below 1"),
    ],
)
def test_what_cannot_start(champion, challenger, share, message):
    with pytest.raises(InputError, match=message):
        start_experiment(champion, challenger, share, "ops")
    assert read_experiment(champion) is None


def test_a_version_of_another_catalog_cannot_start(champion, monkeypatch):
    def catalog(version):
        return {f"version {version.version}": Catalog([Item(f"Title {version.version}.{n}", 2000) for n in range(9)])}

    monkeypatch.setattr("convrec.registry.experiment.version_catalog", catalog)
    with pytest.raises(InputError, match=r"version 5 \(9 items, as Title 5.0 .*version 1 \(9 items, as Title 1.0"):
        start_experiment(champion, add_version(champion, catalog_version="games"), 0.5, "ops")
    assert read_experiment(champion) is None


def test_a_tag_that_is_no_experiment_stops_nothing(champion, cli):
    champion.set_registered_model_tag(model_name(), EXPERIMENT_TAG, "{}")
    assert running_experiment(champion, "1") is None
    assert "No experiment was started" in cli("experiment", "status").out
    assert start_experiment(champion, "2", 0.5, "ops").is_running


def test_an_experiment_ends_if_its_result_cannot_be_recorded(champion, store, monkeypatch, caplog):
    result = read_result(store, start_experiment(champion, "2", 0.5, "ops"))
    monkeypatch.setattr(champion, "set_model_version_tag", Mock(side_effect=ConnectionError("away")))
    assert not finish(champion, result, "enough", "ops").experiment.is_running
    assert f"the end of experiment {result.experiment.id} is done, but could not be recorded (away)" in caplog.text


def test_the_result_of_an_ab_test(champion, store):
    experiment = start_experiment(champion, "2", 0.3, "ops")
    empty = read_result(store, experiment)
    assert empty.headline.endswith("not decided; not enough data: the first analysis is after 100 answers")
    answer_users(store, experiment, (0.2, 0.4), 600)
    result = read_result(store, experiment)
    champion_side, challenger_side = result.sides
    answers, outcomes = store.answers(), store.outcomes()
    assert champion_side.answers + challenger_side.answers == 600 and result.looks[-1].answers == 562
    for side in result.sides:  # by plain loops over the tables
        own = [row for row in answers.iter_rows(named=True) if row["arm"] == side.arm]
        assert side.answers == len(own)
        assert side.users == len({row["user_id"] or row["answer_id"] for row in own})
        assert side.accepted == sum(row["accepted"] for row in outcomes.iter_rows(named=True) if row["arm"] == side.arm)
    assert challenger_side.answers == pytest.approx(180, abs=60)
    assert result.verdict == "better" and result.looks[-1].low > 0
    assert result.looks[-1].mean == pytest.approx(challenger_side.per_answer - champion_side.per_answer, abs=0.05)


def test_a_worse_challenger_is_stopped(champion, store, cli):
    experiment = start_experiment(champion, "2", 0.5, "ops")
    answer_users(store, experiment, (0.4, 0.2), 400)
    shown = cli("experiment", "status")
    assert shown.status == 0 and read_experiment(champion).is_running, "status alone stops nothing"
    assert "worse; -0." in shown.out and "Ended" not in shown.out
    stopped = json.loads(cli("experiment", "status", "--stop-if-worse", "--json").out)
    assert stopped["verdict"] == "worse" and stopped["last"]["high"] < 0
    assert sum(side["answers"] for side in stopped["sides"]) == 400
    ended = read_experiment(champion)
    assert ended.reason == "version 2 is worse than champion 1" and not ended.is_running
    version = champion.get_model_version(model_name(), "2")
    tag = json.loads(version.tags[RESULT_TAG])
    assert (tag["verdict"], tag["champion"], tag["answers"]) == ("worse", "1", 398)
    assert recorded_result(version, "1") == tag and recorded_result(version, "3") is None, "of another champion"
    assert recorded_result(champion.get_model_version(model_name(), "3"), "1") is None
    again = cli("experiment", "status", "--stop-if-worse")
    assert again.status == 0 and "Ended at" in again.out
    assert "no experiment is running" in cli("experiment", "stop").err


def test_an_answer_counts_after_the_same_time_as_all_others(champion, store):
    """Items accepted later than an hour after the answer do not count, nor do answers of the last hour."""
    experiment, now = start_experiment(champion, "2", 0.5, "ops"), datetime.now(UTC)
    times, events = [now - timedelta(hours=4), now - timedelta(hours=3), now - timedelta(minutes=30)], []
    asked = {"user_id": "u", "experiment": experiment.id, "arm": "champion", "version": "1"}
    answers = [make_answer("up", time=time, **asked) for time in times]
    for answer, minutes in zip(answers, (59, 61, 1), strict=True):
        time = answer.time + timedelta(minutes=minutes)
        events.append(Event(f"e{answer.answer_id}", answer.answer_id, "", "up", "accepted", time))
    store.write(answers, events)
    side = read_result(store, experiment).sides[0]
    assert (side.answers, side.accepted) == (2, 1)


def _asked(number: int, arm: str, day: float = 0, has_items: bool = True, user: str | None = None):
    shown = (Shown("", 1, "up", "1"),) if has_items else ()
    user = user or f"u{number}"
    return Answer(f"{user}-{day}-{arm}", START + timedelta(days=day), user, "x", arm, 0.1, None, shown)


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ([], None),
        (
            [_asked(number, "champion", user=f"new{number}") for number in range(60)],
            "all: 0 of 14 in the challenger's arm, expected 7 (e-value 1,092; champion 14 users with 14 answers, "
            "challenger 0 users with 0 answers)",  # 2^14 / 15; the ids of these answers are the first
        ),
        ([_asked(number, "champion", 3) for number in range(0, 60, 2)], "those on 2026-01-04: 0 of 17"),
        ([_asked(n, ("champion", "challenger")[n % 2], 1, n % 2 == 0) for n in range(60)], "without items: 14 of 14"),
        ([_asked(n, ("champion", "challenger")[n % 2], 1, False) for n in range(60)], None),
        ([_asked(0, "challenger")], "1 users are in both arms"),
        (  # at the analysis of 224 answers, 24 of 100 users have two: .76 / 2 of the pairs
            [_asked(number, "champion", 0.1) for number in range(0, 200, 2)],
            "answers per user: a user of the challenger's arm has more than one of the champion's in 38.0% of the "
            "pairs, expected 50% (p = 0.001; champion 100 users with 124 answers, challenger 100 users with 100 "
            "answers); either one arm loses answers, or the challenger changes how often people ask: compare",
        ),
    ],
    ids=["valid", "users lost", "another time", "answers lost", "answers lost in both", "both arms", "unaccepted lost"],
)
def test_an_invalid_experiment_has_no_verdict(champion, store, cli, extra, problem):
    started = start_experiment(champion, "2", 0.5, "ops")
    answers = [_asked(number, ("champion", "challenger")[number % 2]) for number in range(200)] + extra
    store.write([replace(answer, experiment=started.id) for answer in answers], [])
    result = read_result(store, started)
    assert (result.verdict == "withheld") == (problem is not None)
    assert problem is None or (problem in result.problems[0] and problem in result.headline)
    if problem:
        shown = cli("experiment", "status", "--stop-if-worse")
        assert shown.status == 0 and problem in shown.out and read_experiment(champion).is_running
        finish(champion, result, "invalid", "ops")
        recorded = recorded_result(champion.get_model_version(model_name(), "2"), "1")
        assert f": withheld; {result.problems[0]}" in describe_experiment(recorded)


@pytest.mark.parametrize("returns", [False, True])
def test_a_change_of_the_champion_ends_it(champion, store, cli, returns):
    store.counts()  # makes the database
    start_experiment(champion, "3", 0.5, "ops")
    promote_in_turn(champion, "2")
    if returns:
        roll_back(champion, "lead", "slow")
    out = cli("experiment", "status").out
    reason = read_experiment(champion).reason
    assert reason in out
    expected = "and is version 1 again" if returns else "version 2 became the champion"
    assert expected in reason and not read_experiment(champion).is_running


def test_the_command_starts_and_stops(client, store, cli):
    store.counts()
    assert "there is no champion" in cli("experiment", "start", "--challenger", "2").err
    promote_in_turn(client, "1")
    assert "No experiment was started" in cli("experiment", "status").out
    started = cli("experiment", "start", "--challenger", "2", "--share", "0.25", "--by", "ops")
    assert "version 2 against champion 1, for 25% of the users" in started.out
    stopped = cli("experiment", "stop", "--reason", "a\nholiday", "--by", "lead")
    assert "Ended at" in stopped.out and "a holiday" in stopped.out
    assert json.loads(client.get_model_version(model_name(), "2").tags[RESULT_TAG])["reason"] == "a holiday"
    ended = replace(read_experiment(client), reason="\x1b]0;owned\x07\nEnded at noon")
    client.set_registered_model_tag(model_name(), EXPERIMENT_TAG, ended.to_json())
    shown = cli("experiment", "status").out
    assert not set(shown) & set("\x1b\x07") and "\nEnded at noon" not in shown, "others can write to the registry"


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("postgresql://nobody@127.0.0.1:9/none", 75, "is unavailable"),
        ("sqlite:///none.db", 2, "none.db: no feedback was recorded; `convrec serve` records it"),
    ],
)
def test_without_the_database_the_experiment_goes_on_until_it_is_stopped(champion, cli, url, status, message):
    start_experiment(champion, "2", 0.5, "ops")
    ended = cli("experiment", "status", "--stop-if-worse", "--feedback", url)
    assert ended.status == status and message in ended.err and read_experiment(champion).is_running
    stopped = cli("experiment", "stop", "--feedback", url)
    assert stopped.status == 0 and "Ended without a result" in stopped.err
    assert not read_experiment(champion).is_running


def test_the_scheduled_task_stops_a_worse_challenger(champion, store, monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr("tasks.champion.create_markdown_artifact", lambda text, **_: shown.append(text))
    with disable_run_logger():
        assert watch_experiment.fn() == "no experiment is running" and not shown
        experiment = start_experiment(champion, "2", 0.5, "ops")
        answer_users(store, experiment, (0.4, 0.1), 300)
        assert "Ended: version 2 is worse than champion 1." in watch_experiment.fn()
    assert not read_experiment(champion).is_running
    assert "| champion | 1 |" in shown[0] and "| challenger | 2 |" in shown[0]
