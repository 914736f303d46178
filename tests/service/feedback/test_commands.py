import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from convrec.service.feedback import JOURNAL, FeedbackStore, feedback_url
from convrec.service.feedback.journal import Journal
from tests.answers import make_answer, make_event


@pytest.fixture
def project(here, monkeypatch):
    """A project with two users' answers in the database, and one in the journal of a killed service."""
    monkeypatch.delenv("CONVREC_FEEDBACK_URL", raising=False)
    mine, other = make_answer("heat", "up", user_id="me"), make_answer("up", user_id="you", minutes=60 * 24)
    with closing(FeedbackStore(feedback_url())) as store:
        store.write([mine, other], [make_event(mine, "up", "accepted")])
    journal = Journal.create(JOURNAL, "sqlite:///../feedback.db")
    journal.append(make_answer("dune", user_id="me", minutes=60 * 48))
    journal.close()
    return here


def test_status_counts_and_delivers_what_killed_services_left(project, cli):
    alive = Journal.create(JOURNAL, "sqlite:///../feedback.db")
    alive.append(make_answer("up"))
    status, out, err = cli("feedback", "status")
    assert (status, err) == (0, "") and out.splitlines() == [
        f"sqlite:///{project}/feedback/feedback.db: 3 answers (2026-05-04 12:00 to 2026-05-06 12:00 UTC)",
        "4 shown items, 1 events",
    ]
    assert [path.name for path in JOURNAL.iterdir()] == [alive.path.name]


def test_export_writes_the_period(project, cli):
    path = project / "out.jsonl"
    status, out, _ = cli("feedback", "export", path, "--since", "2026-05-05", "--until", "2026-05-06")
    assert (status, out) == (0, f"{path}: 1 shown items\n")
    (row,) = map(json.loads, path.read_text().splitlines())
    assert (row["item_id"], row["user_id"], row["accepted"], row["messages"]) == ("up", "you", False, None)


def test_a_deleted_user_leaves_the_database_and_the_journals(project, cli):
    status, out, _ = cli("feedback", "delete-user", " me ")
    assert status == 0 and out.startswith("2 answers deleted\n") and "docs/privacy.md" in out
    assert cli("feedback", "export", "all.parquet").out == "all.parquet: 1 shown items\n"
    assert pl.read_parquet("all.parquet")["user_id"].to_list() == ["you"]
    assert not any(JOURNAL.iterdir())
    assert b"heat" not in (project / "feedback" / "feedback.db").read_bytes()
    assert cli("feedback", "delete-user", "me").out.startswith("0 answers deleted\n")


def test_prune_deletes_what_is_older_than_some_days(project, cli):
    with closing(FeedbackStore(feedback_url())) as store:
        store.write([make_answer("up", time=datetime.now(UTC) - timedelta(days=9), answer_id="recent")], [])
        assert cli("feedback", "prune", "--days", "10").out.startswith("3 answers before ")
        assert store.answers()["answer_id"].to_list() == ["recent"]


def test_without_records_nothing_is_created(here, monkeypatch, cli):
    monkeypatch.delenv("CONVREC_FEEDBACK_URL", raising=False)
    for arguments in (["status"], ["export", "x.csv"], ["delete-user", "u"]):
        ended = cli("feedback", *arguments)
        assert ended.status == 2 and "feedback.db: no feedback was recorded; `convrec serve` records it" in ended.err
    assert not any(here.iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["prune"], 2, "--days"),
        (["export", "x.csv", "--since", "May"], 2, 'for --since: unable to convert "May" into datetime'),
        (["export", "x.txt"], 2, "x.txt: the ending '.txt' is unknown; give one of .parquet, .csv, .jsonl"),
        (["status", "--feedback", "feedback.jsonl"], 2, "feedback database 'feedback.jsonl' is not a valid URL"),
        (["status", "--feedback", "postgresql://127.0.0.1:9/x"], 75, "is unavailable"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(project, cli, arguments, status, message):
    ended = cli("feedback", *arguments)
    assert (ended.status, ended.out) == (status, "") and message in ended.err.splitlines()[-1]
    assert not (project / "x.csv").exists()


def test_a_journal_of_another_database_stays_and_is_said(project, cli):
    status, out, err = cli("feedback", "status", "--feedback", "sqlite:///other.db")
    assert status == 0 and "other.db: 0 answers" in out and len(list(JOURNAL.iterdir())) == 1
    assert "feedback is not delivered: " in err
    assert "belongs to the database sqlite:///feedback/feedback.db; give it" in err
    assert cli("feedback", "status").err == "" and not any(JOURNAL.iterdir())
