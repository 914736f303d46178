import json
import os
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta

import pytest

from convrec.project.errors import InputError, Unavailable
from convrec.service.feedback import FeedbackStore, Shown, recorder
from convrec.service.feedback.database import checked_url, identity
from convrec.service.feedback.journal import Journal
from convrec.service.feedback.recorder import FeedbackRecorder
from tests.service.feedback.conftest import until


def test_answers_and_events_reach_the_database(recording, store, now_answer):
    one = now_answer("heat", "up", user_id="u", messages=[{"role": "user", "content": "Hi"}])
    assert recording.add_answer(one)
    for _ in range(2):  # a client that sends it again
        recording.add_event(one.answer_id, "", "up", "clicked", event_id="e1")
    recording.add_event(one.answer_id, "", "up", "accepted")
    until(lambda: recording.backlog == 0)
    assert len(store.events()) == 2
    assert store.answers()["messages"].to_list() == ['[{"role": "user", "content": "Hi"}]']
    assert store.outcomes().select("item_id", "accepted", "clicked").rows() == [
        ("heat", False, False),
        ("up", True, True),
    ]
    recording.close()
    assert not recording.add_answer(now_answer("heat"))


def test_each_record_is_delivered_once_while_others_arrive(journal, url, store, now_answer, monkeypatch):
    """Each delivery finds that another answer was added meanwhile, until 60 of them have been; one of them fails."""
    added = [now_answer("heat") for _ in range(61)]
    delivered, sizes, write, rest = [], [], recorder.FeedbackStore.write, iter(added)

    def slow(self, answers, events):
        if len(sizes) == 30:
            sizes.append(0)
            raise Unavailable("away")
        write(self, answers, events)
        delivered.extend(one.answer_id for one in answers)
        sizes.append(journal.stat().st_size)
        if another := next(rest, None):
            recording.add_answer(another)

    monkeypatch.setattr(recorder.FeedbackStore, "write", slow)
    monkeypatch.setattr(recorder, "_LINGER", 0.001)
    with closing(FeedbackRecorder(journal, url)) as recording:
        recording.add_answer(next(rest))
        until(lambda: len(delivered) == len(added) and recording.backlog == 0)
    assert max(sizes) < 50_000
    assert delivered == [one.answer_id for one in added] and store.counts()["answers"] == len(added)


def test_conversations_are_left_out_or_stored_without_secrets(journal, url, store, now_answer, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "abcdef123456")
    said = [{"role": "user", "content": "I am a@b.de, my key is abcdef123456\ud800; 2001?"}]
    for with_conversations in (False, True):
        with closing(FeedbackRecorder(journal, url, with_conversations)) as recording:
            assert recording.add_answer(now_answer("heat", messages=said))
    first, second = store.answers()["messages"]
    assert first is None and json.loads(second)[0]["content"] == "I am a@b.de, my key is ***?; 2001?"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answer_id": "nonsense"}, "answer_id: 'nonsense' is unknown"),
        ({"item_id": "dune"}, "item_id 'dune' was not shown by this answer"),
        ({"list": "challenger"}, "item_id 'up' was not shown in list 'challenger' by this answer"),
        ({"event_id": "x" * 201}, "event_id: 'xxx.* is not valid; give at most 200"),
        ({"event_id": "a\0b"}, r"event_id: 'a\\x00b' is not valid"),
    ],
)
def test_wrong_events_are_refused_at_once(recording, store, now_answer, fields, message):
    one = now_answer("heat", "up")
    recording.add_answer(one)
    with pytest.raises(InputError, match=message):
        recording.add_event(**{"answer_id": one.answer_id, "list": "", "item_id": "up", "event": "accepted", **fields})
    recording.close()
    assert store.counts() == {"answers": 1, "shown": 2, "events": 0}


@pytest.mark.parametrize("hours", [0, -1])
def test_the_last_event_counts_within_a_microsecond_or_after_the_clock_was_set_back(
    recording, store, now_answer, monkeypatch, hours
):
    one = now_answer("heat")
    recording.add_answer(one)
    times = iter(one.time + timedelta(hours=hours * place) for place in range(3))

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return next(times)

    monkeypatch.setattr(recorder, "datetime", Clock)
    for event in ("accepted", "withdrawn", "accepted"):
        recording.add_event(one.answer_id, "", "heat", event)
    recording.close()
    assert store.events()["event"].to_list() == ["accepted", "withdrawn", "accepted"]
    assert store.outcomes()["accepted"].all()


def test_a_deleted_users_answers_in_a_journal_are_not_delivered(journal, url, store, now_answer, monkeypatch):
    monkeypatch.setattr(recorder, "_LINGER", 60)
    with closing(FeedbackRecorder(journal, url)) as recording:
        recording.add_answer(now_answer("heat", user_id="me"))
        recording.add_answer(now_answer("heat", user_id="you"))
        store.delete_user("me")
    assert store.answers()["user_id"].to_list() == ["you"]


def test_what_the_database_rejects_holds_up_no_other(journal, url, store, now_answer, monkeypatch):
    monkeypatch.setattr(recorder, "_LINGER", 60)
    good = [now_answer("heat") for _ in range(2)]
    bad = now_answer(shown=(Shown("", 2**63, "heat", "3"),))  # larger than a column's integers
    earlier = {"answer_id": "a", "time": "2026-05-04T12:00:00+00:00", "user_id": None, "experiment": None, "arm": None}
    earlier |= {"is_explored": False, "latency_seconds": 0.1, "messages": None}  # of an earlier release
    earlier["shown"] = [{"list": "", "rank": 1, "item_id": "heat", "version": "3", "propensity": 1.0}]
    with closing(FeedbackRecorder(journal, url)) as recording:
        for one in (good[0], bad, {"answer_id": 3, "user_id": "me"}, earlier, good[1]):
            recording._journal.append(one)
    assert sorted(store.answers()["answer_id"]) == sorted(["a", *(one.answer_id for one in good)])
    with closing(sqlite3.connect(journal)) as opened:
        (one, other) = opened.execute("SELECT record, reason FROM records").fetchall()
    assert json.loads(one[0]) == {"answer_id": bad.answer_id} and one[1].startswith("the database rejects it")
    assert json.loads(other[0]) == {"answer_id": 3} and "ValidationError" in other[1]


@pytest.mark.parametrize("kind", ["file", "damaged", "url"])
def test_a_bad_journal_or_url_is_refused_before_anything_is_recorded(tmp_path, kind):
    taken = tmp_path / "taken"
    taken.write_text("no database" * 100)
    journal = {"file": taken / "j", "damaged": taken}.get(kind, tmp_path / "j")
    url = "mysql://x/y" if kind == "url" else f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(InputError, match="taken: File exists|database is damaged|not supported"):
        FeedbackRecorder(journal, url)


def test_a_record_is_delivered_to_its_own_database(journal, url, store, now_answer, tmp_path, caplog):
    other, mine, theirs = FeedbackStore(f"sqlite:///{tmp_path}/other.db"), now_answer("heat"), now_answer("up")
    for one, its_store in ((mine, store), (theirs, other)):
        with closing(Journal(journal, its_store)) as left:  # of a service that was killed
            left.append(one)
    with closing(FeedbackRecorder(journal, url)) as recording:
        until(lambda: recording.backlog == 0)
    assert store.answers()["answer_id"].to_list() == [mine.answer_id]
    place = os.path.relpath(tmp_path / "other.db")
    assert caplog.text.count(f"1 records in {journal} are for the database sqlite:///{place}; give it with") == 1
    with closing(Journal(journal, other)) as left:
        left.deliver()
        assert left.of_others() == [] and other.answers()["answer_id"].to_list() == [theirs.answer_id]


def test_a_database_is_the_same_for_all_its_users_and_wherever_its_folder_is(tmp_path):
    def name(url: str, folder: str) -> str:
        return identity(checked_url(url), tmp_path / folder)

    here, there = (name(f"sqlite:///{tmp_path}/{place}/feedback.db", f"{place}/journal") for place in ("a", "b"))
    assert here == there == "sqlite:///../feedback.db"
    assert name("postgresql://me:secret@db/feedback", "j") == name(
        "postgresql+psycopg2://you@db:5432/feedback?x=y", "j"
    )
    assert name("postgresql://me@db/feedback", "j") != name("postgresql://me@db/other", "j")
    assert "secret" not in name("postgresql://me:secret@db/feedback", "j")
