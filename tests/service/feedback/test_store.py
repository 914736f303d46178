import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.event import listen
from sqlalchemy.exc import IntegrityError

from convrec.project.errors import InputError, NoSpace, Unavailable
from convrec.service.feedback import FeedbackStore, Shown, feedback_url
from convrec.service.feedback.recorder import FeedbackRecorder
from convrec.service.feedback.store import export
from tests.answers import NOON, make_answer, make_event


def test_what_is_written_is_read(store):
    messages = [{"role": "user", "content": "Heißes\n„Kino“"}]
    shown = (Shown("champion", 1, "heat", "3"), Shown("challenger", 1, "up", "4"))
    facts = {"user_id": "u", "experiment": "x", "arm": "challenger"}
    tokyo = datetime.fromisoformat("2026-05-04T21:00:00+09:00")
    first = make_answer(messages=messages, shown=shown, time=tokyo, **facts)
    empty = make_answer(minutes=1)
    for table in (store.answers(), store.shown(), store.events(), store.outcomes()):
        assert len(table) == 0 and table.schema["time"].time_zone == "UTC"
    store.write([empty, first], [make_event(first, "up", "accepted")])
    answers = store.answers()
    assert answers["answer_id"].to_list() == [first.answer_id, empty.answer_id]  # oldest first
    expected = {"answer_id": first.answer_id, "time": NOON, **facts, "latency_seconds": 0.25, "num_items": 2}
    expected["messages"] = '[{"role": "user", "content": "Heißes\\n„Kino“"}]'
    assert answers.row(0, named=True) == expected
    assert answers.row(1, named=True)["num_items"] == 0
    assert answers.row(1, named=True)["messages"] is None
    assert store.shown().select("list", "rank", "item_id", "version", "arm", "time").rows() == [
        ("challenger", 1, "up", "4", "challenger", NOON),
        ("champion", 1, "heat", "3", "challenger", NOON),
    ]
    assert store.events().select("list", "item_id", "event").rows() == [("challenger", "up", "accepted")]


def test_writing_twice_stores_once(store):
    one = make_answer("heat", "up")
    happened = make_event(one, "up", "clicked", event_id="e1")
    for _ in range(2):
        store.write([one, one], [happened, happened])
    store.write([replace(one, latency_seconds=9.0)], [replace(happened, event="hidden")])  # the first one stays
    assert store.counts() == {"answers": 1, "shown": 2, "events": 1}
    assert store.answers()["latency_seconds"].to_list() == [0.25]
    assert store.events()["event"].to_list() == ["clicked"]


def test_the_last_state_counts_and_clicks_stay(store):
    one = make_answer("heat", "up", "dune", "alien")
    events = [("heat", "clicked", 1), ("heat", "rejected", 2), ("heat", "accepted", 3), ("up", "accepted", 4)]
    events += [("up", "withdrawn", 5), ("up", "watched", 6), ("dune", "hidden", 8), ("dune", "accepted", 7)]  # late
    store.write([one], [make_event(one, *event) for event in events])
    facts = ("item_id", "accepted", "rejected", "hidden", "clicked", "watched")
    assert store.outcomes().select(facts).rows() == [
        ("heat", True, False, False, True, False),
        ("up", False, False, False, False, True),
        ("dune", False, False, True, False, False),
        ("alien", False, False, False, False, False),
    ]


def test_events_of_unknown_answers_and_items_change_no_outcome(store):
    known = make_answer(shown=(Shown("champion", 1, "heat", "3"), Shown("challenger", 1, "heat", "4")))
    unknown, good = make_answer("heat"), replace(make_event(known, "heat", "accepted"), list="challenger")
    wrong = [replace(good, event_id="e1", item_id="up"), replace(good, event_id="e2", list="third")]
    store.write([known], [good, *wrong, make_event(unknown, "heat", "hidden")])
    assert store.outcomes().select("list", "accepted").rows() == [("challenger", True), ("champion", False)]


def test_since_is_inclusive_and_until_exclusive(store):
    answers = [make_answer("heat", minutes=minute) for minute in range(4)]
    store.write(answers, [make_event(one, "heat", "accepted", 60) for one in answers])
    since, until = NOON + timedelta(minutes=1), NOON + timedelta(minutes=3)
    for table in (store.answers(since, until), store.shown(since, until), store.outcomes(since, until)):
        assert table["time"].to_list() == [since, NOON + timedelta(minutes=2)]
    assert set(store.events(since, until)["answer_id"]) == {one.answer_id for one in answers[1:3]}
    assert store.outcomes(since, until)["accepted"].all()


def test_a_deleted_user_leaves_nothing_and_late_answers_of_theirs_are_dropped(store):
    mine, other, late = (make_answer("heat", user_id=user) for user in ("me", "you", "me"))
    store.write([mine, other], [make_event(mine, "heat", "accepted"), make_event(other, "heat", "accepted")])
    assert store.delete_user("me\u200b") == 1
    assert store.answers()["user_id"].to_list() == ["you"]
    assert store.counts() == {"answers": 1, "shown": 1, "events": 1}
    store.write([late], [make_event(late, "heat", "accepted")])
    assert store.counts() == {"answers": 1, "shown": 1, "events": 1}, "events of dropped answers are dropped"
    store.write([], [make_event(late, "heat", "accepted")])  # delivered apart from its answer
    assert store.delete_user("me") == 0 and store.counts()["events"] == 1
    back = replace(make_answer("heat", user_id="me"), time=datetime.now(UTC) + timedelta(seconds=1))
    store.write([back], [])  # they came back after the deletion
    assert store.answers()["answer_id"].to_list() == [other.answer_id, back.answer_id]
    assert store.delete_user("someone else") == 0
    with pytest.raises(InputError, match="user_id ' Guest': this is nobody's id; give that of a user, or delete by"):
        store.delete_user(" Guest")


def test_many_services_that_start_at_once_create_the_tables_once(url):
    stores = [FeedbackStore(url) for _ in range(4)]
    answers = [make_answer("heat", "up", user_id="u") for _ in range(2000)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda store: store.write([answers[0]], [make_event(answers[0], "up", "clicked")]), stores))
    stores[0].write(answers, [make_event(one, "up", "hidden") for one in answers])
    assert stores[1].counts() == {"answers": 2000, "shown": 4000, "events": 2004}
    for store in stores:
        store.close()


def test_a_service_waits_while_another_process_creates_the_database(folder):
    folder.mkdir()
    creator = sqlite3.connect(folder / "feedback.db", isolation_level=None, check_same_thread=False)
    creator.execute("BEGIN IMMEDIATE")
    end = threading.Timer(0.3, creator.execute, ["COMMIT"])
    end.start()
    assert FeedbackStore(f"sqlite:///{folder}/feedback.db").counts()["answers"] == 0
    end.join()
    creator.close()


def test_a_service_does_not_begin_with_a_database_of_another_version(store, url, folder):
    store.counts()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE shown ADD COLUMN propensity FLOAT"))
    engine.dispose()
    with pytest.raises(InputError, match="table shown is that of another version of convrec, by its columns prop"):
        FeedbackRecorder(folder, url)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        *((url, url) for url in ("mysql://host/db", "sqlite://", "sqlite:///:memory:", "feedback.jsonl")),
        ("postgresql://me:s3cret@db:port/feedback", "***@db:port/feedback"),
        ("postgresql//me:s3c@ret@db/feedback", "***@db/feedback"),
        ("postgresql://me:s3cret@[::1/feedback", "***@[::1/feedback"),
        ("nosuch://me:s3cret@db/feedback", "***@db/feedback"),
        ("postgresql+asyncpg://me:s3cret@db/feedback", "postgresql+asyncpg://***@db/feedback"),
        ("sqlite+aiosqlite:///feedback.db?token=s3cret", "?token=***"),
    ],
)
def test_a_url_that_cannot_be_is_told_without_its_password(url, shown):
    with pytest.raises(
        InputError, match="is not (a valid URL|supported); give sqlite:///FILE or postgresql://... with"
    ) as error:
        FeedbackStore(url)
    assert shown in str(error.value) and "token=s3cret" not in str(error.value) and ":s3c" not in str(error.value)


def test_a_server_that_is_away_is_unavailable_and_its_password_is_not_shown():
    store = FeedbackStore("postgresql://u:secret@127.0.0.1:9/db")
    with pytest.raises(Unavailable, match=r"postgresql://\*\*\*@127.0.0.1:9/db is unavailable") as caught:
        store.counts()
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_a_server_that_rejects_the_password_is_bad_input(postgres_url):
    wrong = make_url(postgres_url).set(password="wr0ng").render_as_string(hide_password=False)
    with closing(FeedbackStore(wrong)) as store, pytest.raises(InputError, match="rejects this user .*; corr") as error:
        store.counts()
    assert "wr0ng" not in str(error.value)


def test_a_full_disk_is_told_and_what_records_say_is_no_error_of_the_database(tmp_path):
    with closing(FeedbackStore(f"sqlite:///{tmp_path}/feedback.db")) as store:
        store.counts()
        listen(store._engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count = 1"))
        with pytest.raises(NoSpace, match="the disk is full .database or disk is full.; free some space"):
            store.write([make_answer("heat", user_id="x" * 100_000)], [])
    with closing(FeedbackStore(f"sqlite:///{tmp_path}/other.db")) as store, pytest.raises(IntegrityError):
        store.write([replace(make_answer("heat"), latency_seconds=None, user_id="no such table")], [])


def test_a_locked_sqlite_file_is_unavailable_and_a_damaged_one_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("convrec.service.feedback.database._TIMEOUT", 0.1)
    path = tmp_path / "feedback.db"
    with closing(FeedbackStore(f"sqlite:///{path}")) as store:
        store.counts()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="database is locked"):
                store.write([make_answer("heat")], [])
        store.write([make_answer("heat")], [])
        assert store.counts()["answers"] == 1
    damaged = tmp_path / "damaged.db"
    damaged.write_text("no database " * 100)
    with closing(FeedbackStore(f"sqlite:///{damaged}")) as store, pytest.raises(InputError, match="is damaged"):
        store.counts()


def test_the_database_is_that_of_the_option_the_variable_or_the_project(tmp_path, monkeypatch):
    monkeypatch.delenv("CONVREC_FEEDBACK_URL", raising=False)
    assert feedback_url(root=tmp_path) == f"sqlite:///{tmp_path}/feedback/feedback.db"
    monkeypatch.setenv("CONVREC_FEEDBACK_URL", "postgresql://db/feedback")
    assert feedback_url() == "postgresql://db/feedback"
    assert feedback_url("sqlite:///x.db") == "sqlite:///x.db"


def test_periods_have_every_answer_once(store, monkeypatch):
    monkeypatch.setattr("convrec.service.feedback.store._PERIOD", 3)
    minutes = [0, 0, 0, 0, 0, 1, 2, 2, 3, 4, 5, 6]
    store.write([make_answer("heat", minutes=minute) for minute in minutes], [])
    for since, until in [(None, None), (NOON, NOON + timedelta(minutes=5)), (NOON + timedelta(minutes=9), None)]:
        periods = list(store.periods(since, until))
        assert periods[0][0] == since and periods[-1][1] == until
        assert [end for _, end in periods[:-1]] == [start for start, _ in periods[1:]]
        parts = [store.answers(*period)["answer_id"].to_list() for period in periods]
        assert sum(parts, []) == store.answers(since, until)["answer_id"].to_list()
        assert max(map(len, parts)) <= 5 + 3, "3 answers after those of the first time, which are read together"


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_an_export_in_parts_has_the_outcomes_and_is_the_same_again(store, tmp_path, monkeypatch, ending):
    said = [{"role": "user", "content": 'He said: "Kino", and\n„mehr“'}]
    answers = [make_answer("heat", "up", minutes=minute, messages=said) for minute in range(9)]
    store.write(answers, [make_event(one, "up", "accepted", 60) for one in answers[::2]])
    whole, parts = (tmp_path / "out" / f"{name}.{ending}" for name in ("whole", "parts"))
    assert export(store, whole) == 18
    first = whole.read_bytes()
    assert export(store, whole) == 18 and whole.read_bytes() == first
    monkeypatch.setattr("convrec.service.feedback.store._PERIOD", 2)
    read_rows, sizes = FeedbackStore._read, []
    monkeypatch.setattr(FeedbackStore, "_read", lambda *arguments: sizes.append(read_rows(*arguments)) or sizes[-1])
    assert export(store, parts) == 18
    assert max(map(len, sizes)) == 6, "all rows were in memory at once"
    monkeypatch.undo()
    if ending != "parquet":
        assert whole.read_bytes() == parts.read_bytes()
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[ending]
    found, columns = read(parts), ("answer_id", "item_id", "accepted")
    assert found.select(columns).rows() == store.outcomes().select(columns).rows()
    (messages,) = set(found["messages"])
    assert json.loads(messages) == said
    assert str(found["time"][0]).startswith(("2026-05-04T12:00:00", "2026-05-04 12:00:00"))
    assert export(store, parts, NOON + timedelta(days=9)) == 0


def test_outcomes_within_a_time_after_the_answer(store):
    one = make_answer("heat", "up")
    happened = (("heat", "accepted", 5), ("heat", "withdrawn", 15), ("up", "accepted", 11))
    store.write([one], [make_event(one, *facts) for facts in happened])
    assert store.outcomes(within=timedelta(minutes=10))["accepted"].to_list() == [True, False]
    assert store.outcomes()["accepted"].to_list() == [False, True]
