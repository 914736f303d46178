import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from convrec.errors import InputError, Unavailable
from convrec.feedback import FeedbackStore, Shown, feedback_url, tables
from tests.feedback.conftest import NOON


def test_what_is_written_is_read(store, answer, event):
    messages = [{"role": "user", "content": "Heißes\n„Kino“"}]
    shown = (Shown("champion", 1, "heat", "3", 0.95), Shown("challenger", 1, "up", "4", 0.05))
    filters = {"denied": ("dune",), "allowed": ("heat", "up")}
    facts = {"user_id": "u", "experiment": "x", "arm": "interleaved", "is_explored": True}
    first = answer(messages=messages, shown=shown, **facts, **filters)
    empty = answer(minutes=1)
    store.write([empty, first], [event(first, "up", "accepted")])
    answers = store.answers()
    assert answers["answer_id"].to_list() == [first.answer_id, empty.answer_id]  # oldest first
    assert answers.row(0, named=True) == {
        "answer_id": first.answer_id,
        "time": NOON,
        "user_id": "u",
        "experiment": "x",
        "arm": "interleaved",
        "is_explored": True,
        "latency_seconds": 0.25,
        "messages": '[{"role": "user", "content": "Heißes\\n„Kino“"}]',
        "num_items": 2,
        "denied": '["dune"]',
        "allowed": '["heat", "up"]',
    }
    assert answers.row(1, named=True)["num_items"] == 0
    assert answers.select("messages", "denied", "allowed").row(1) == (None, None, None)
    assert store.shown().select("list", "rank", "item_id", "version", "propensity", "arm", "time").rows() == [
        ("challenger", 1, "up", "4", 0.05, "interleaved", NOON),
        ("champion", 1, "heat", "3", 0.95, "interleaved", NOON),
    ]
    assert store.events().select("list", "item_id", "rank", "event").rows() == [("challenger", "up", 1, "accepted")]


def test_an_empty_database_has_tables_without_rows(store):
    for table in (store.answers(), store.shown(), store.events(), store.outcomes()):
        assert len(table) == 0 and table.schema["time"].time_zone == "UTC"


def test_writing_twice_stores_once(store, answer, event):
    one = answer("heat", "up")
    happened = event(one, "up", "clicked", event_id="e1")
    for _ in range(2):
        assert store.write([one, one], [happened, happened]) == []
    store.write([replace(one, latency_seconds=9.0)], [replace(happened, event="hidden")])  # the first one stays
    assert store.counts() == {"answers": 1, "shown": 2, "events": 1}
    assert store.answers()["latency_seconds"].to_list() == [0.25]
    assert store.events()["event"].to_list() == ["clicked"]


def test_the_last_state_counts_and_clicks_stay(store, answer, event):
    one = answer("heat", "up", "dune", "alien")
    store.write(
        [one],
        [
            event(one, "heat", "clicked", 1),
            event(one, "heat", "rejected", 2),
            event(one, "heat", "accepted", 3),
            event(one, "up", "accepted", 4),
            event(one, "up", "withdrawn", 5),
            event(one, "up", "watched", 6),
            event(one, "dune", "hidden", 8),
            event(one, "dune", "accepted", 7),  # arrives late
        ],
    )
    facts = ("item_id", "accepted", "rejected", "hidden", "clicked", "watched")
    assert store.outcomes().select(facts).rows() == [
        ("heat", True, False, False, True, False),
        ("up", False, False, False, False, True),
        ("dune", False, False, True, False, False),
        ("alien", False, False, False, False, False),
    ]


def test_events_of_unknown_answers_and_items_are_returned_and_the_others_written(store, answer, event):
    known, unknown = answer("heat"), answer("heat")
    refused = store.write(
        [known], [event(known, "heat", "accepted"), event(known, "up", "accepted"), event(unknown, "heat", "hidden")]
    )
    assert [one.reason for one in refused] == [
        "item_id 'up' was not shown by this answer; give one of its items",
        f"answer_id '{unknown.answer_id}' is unknown",
    ]
    assert store.counts()["events"] == 1


def test_an_event_counts_for_its_list(store, answer, event):
    one = answer(shown=(Shown("champion", 1, "heat", "3"), Shown("challenger", 1, "heat", "4")))
    store.write([one], [replace(event(one, "heat", "accepted"), list="challenger")])
    assert store.outcomes().select("list", "accepted").rows() == [("challenger", True), ("champion", False)]
    (refused,) = store.write([], [replace(event(one, "heat", "accepted"), list="third")])
    assert refused.reason == "item_id 'heat' was not shown in list 'third' by this answer; give one of its items"


def test_since_is_inclusive_and_until_exclusive(store, answer, event):
    answers = [answer("heat", minutes=minute) for minute in range(4)]
    store.write(answers, [event(one, "heat", "accepted", 60) for one in answers])
    since, until = NOON + timedelta(minutes=1), NOON + timedelta(minutes=3)
    for table in (store.answers(since, until), store.shown(since, until), store.outcomes(since, until)):
        assert table["time"].to_list() == [since, NOON + timedelta(minutes=2)]
    assert set(store.events(since, until)["answer_id"]) == {one.answer_id for one in answers[1:3]}
    assert store.outcomes(since, until)["accepted"].all()


def test_other_time_zones_are_stored_in_utc(store, answer):
    tokyo = datetime.fromisoformat("2026-05-04T21:00:00+09:00")
    store.write([replace(answer("heat"), time=tokyo)], [])
    assert store.answers(since=NOON)["time"].to_list() == [NOON]


def test_a_deleted_user_leaves_nothing_and_late_answers_of_theirs_are_dropped(store, answer, event):
    mine, other, late = (answer("heat", user_id=user) for user in ("me", "you", "me"))
    store.write([mine, other], [event(mine, "heat", "accepted"), event(other, "heat", "accepted")])
    assert store.delete_user("me") == 1
    assert store.answers()["user_id"].to_list() == ["you"]
    assert store.counts() == {"answers": 1, "shown": 1, "events": 1}
    (refused,) = store.write([late], [event(late, "heat", "accepted")])
    assert "is unknown" in refused.reason
    back = replace(answer("heat", user_id="me"), time=datetime.now(UTC) + timedelta(seconds=1))
    store.write([back], [])  # they came back after the deletion
    assert store.answers()["answer_id"].to_list() == [other.answer_id, back.answer_id]
    assert store.delete_user("nobody") == 0


def test_prune_deletes_what_is_older(store, answer, event):
    answers = [answer("heat", minutes=minute) for minute in range(3)]
    store.write(answers, [event(one, "heat", "accepted", 60) for one in answers])
    assert store.prune(NOON + timedelta(minutes=2)) == 2
    assert store.answers()["answer_id"].to_list() == [answers[2].answer_id]
    assert store.counts() == {"answers": 1, "shown": 1, "events": 1}


def test_many_answers_and_events_fit_one_transaction(store, answer, event):
    answers = [answer("heat", "up", user_id=f"u{number}") for number in range(2000)]
    assert store.write(answers, [event(one, "up", "accepted") for one in answers]) == []
    assert store.counts() == {"answers": 2000, "shown": 4000, "events": 2000}


def test_services_that_start_at_once_migrate_once(url, answer):
    stores, errors = [FeedbackStore(url) for _ in range(4)], []

    def write(store: FeedbackStore) -> None:
        try:
            store.write([answer("heat")], [])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and stores[0].counts()["answers"] == 4
    for store in stores:
        store.close()


def test_the_migrations_make_the_tables_of_the_code(store, url):
    store.counts()
    engine = create_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    engine.dispose()


def test_a_database_of_the_first_version_is_migrated_and_keeps_its_rows(store, url, answer):
    store.write([answer("heat")], [])
    engine = create_engine(url)
    with engine.begin() as connection:
        for column in ("denied", "allowed"):
            connection.execute(text(f"ALTER TABLE answers DROP COLUMN {column}"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    engine.dispose()
    with closing(FeedbackStore(url)) as again:
        again.write([answer("up", minutes=1, denied=("heat",))], [])
        assert again.answers().select("num_items", "denied").rows() == [(1, None), (1, '["heat"]')]


def test_a_database_of_a_later_version_is_refused(store, url):
    store.counts()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with closing(FeedbackStore(url)) as again, pytest.raises(InputError, match="later version of convrec.*'9999'"):
        again.counts()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("feedback.db", "'feedback.db' is not a URL; give sqlite:///FILE or postgresql://"),
        ("mysql://host/db", "'mysql' is not supported"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_urls_that_cannot_be_are_refused(url, message):
    with pytest.raises(InputError, match=message):
        FeedbackStore(url)


def test_a_server_that_is_away_is_unavailable_and_its_password_is_not_shown():
    store = FeedbackStore("postgresql://u:secret@127.0.0.1:9/db")
    with pytest.raises(Unavailable, match=r"postgresql://u:\*\*\*@127.0.0.1:9/db is unavailable") as caught:
        store.counts()
    assert "secret" not in str(caught.value)


def test_a_locked_sqlite_file_is_unavailable_and_a_damaged_one_refused(tmp_path, monkeypatch, answer):
    monkeypatch.setattr("convrec.feedback.database._TIMEOUT", 0.1)
    path = tmp_path / "feedback.db"
    with closing(FeedbackStore(f"sqlite:///{path}")) as store:
        store.counts()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(Unavailable, match="database is locked"):
                store.write([answer("heat")], [])
        store.write([answer("heat")], [])
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
    monkeypatch.setenv("CONVREC_FEEDBACK_URL", "feedback.jsonl")
    with pytest.raises(InputError, match="CONVREC_FEEDBACK_URL: feedback database 'feedback.jsonl' is not a URL"):
        feedback_url()
