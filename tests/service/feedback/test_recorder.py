import errno
import json
import os
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from convrec.project.errors import InputError, Unavailable
from convrec.service.feedback import FeedbackStore, Shown, recorder
from convrec.service.feedback.journal import REFUSED, Journal, deliver_left
from convrec.service.feedback.recorder import FeedbackRecorder
from tests.answers import answer_now
from tests.service.feedback.conftest import until


def refused(folder: Path) -> list[str]:
    """Return the reasons of the records that were set aside."""
    path = folder / REFUSED
    return [json.loads(line)["reason"] for line in path.read_text().splitlines()] if path.exists() else []


def test_answers_and_events_reach_the_database(recording, store, folder):
    one = answer_now("heat", "up", user_id="u", messages=[{"role": "user", "content": "Hi"}])
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
    assert list(folder.iterdir()) == []
    assert not recording.add_answer(answer_now("heat"))


def test_the_journal_stays_small_while_records_keep_arriving(folder, url, store, monkeypatch):
    """Each delivery finds that another answer was added meanwhile, until 200 of them have been."""
    monkeypatch.setattr(recorder, "_MAX_JOURNAL", 4000)
    added = [answer_now("heat") for _ in range(201)]
    delivered, sizes, write, rest = [], [], recorder.FeedbackStore.write, iter(added)

    def slow(self, answers, events):
        write(self, answers, events)
        delivered.extend(one.answer_id for one in answers)
        sizes.append(sum(path.stat().st_size for path in folder.glob("*.journal")))
        if another := next(rest, None):
            recording.add_answer(another)

    monkeypatch.setattr(recorder.FeedbackStore, "write", slow)
    monkeypatch.setattr(recorder, "_LINGER", 0.001)
    with closing(FeedbackRecorder(folder, url)) as recording:
        recording.add_answer(next(rest))
        until(lambda: len(delivered) == len(added) and recording.backlog == 0)
    assert max(sizes) < 2 * 4000
    assert delivered == [one.answer_id for one in added] and store.counts()["answers"] == len(added)
    assert list(folder.iterdir()) == []


def test_a_journal_whose_replacement_fails_is_delivered_later(folder, url, store, monkeypatch):
    """The database goes away after the journal was replaced and before its last record was delivered."""
    monkeypatch.setattr(recorder, "_MAX_JOURNAL", 0)
    added, calls, write = [answer_now("heat") for _ in range(3)], [], recorder.FeedbackStore.write

    def fail_once(self, answers, events):
        calls.append(answers)
        if len(calls) == 2:
            raise Unavailable("away")
        write(self, answers, events)
        if len(calls) == 1:
            recording.add_answer(added[1])

    monkeypatch.setattr(recorder.FeedbackStore, "write", fail_once)
    with closing(FeedbackRecorder(folder, url)) as recording:
        recording.add_answer(added[0])
        until(lambda: len(calls) >= 3 and recording.last_error is None)
        recording.add_answer(added[2])
        until(lambda: recording.backlog == 0)
    assert sorted(store.answers()["answer_id"]) == sorted(one.answer_id for one in added)
    assert list(folder.iterdir()) == []


def test_conversations_are_left_out_or_stored_without_secrets(folder, url, store, monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "abcdef123456")
    said = [{"role": "user", "content": "I am a@b.de, my key is abcdef123456\ud800; 2001?"}]
    for with_conversations in (False, True):
        with closing(FeedbackRecorder(folder, url, with_conversations)) as recording:
            assert recording.add_answer(answer_now("heat", messages=said))
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
def test_wrong_events_are_refused_at_once(recording, store, fields, message):
    one = answer_now("heat", "up")
    recording.add_answer(one)
    with pytest.raises(InputError, match=message):
        recording.add_event(**{"answer_id": one.answer_id, "list": "", "item_id": "up", "event": "accepted", **fields})
    recording.close()
    assert store.counts() == {"answers": 1, "shown": 2, "events": 0}


@pytest.mark.parametrize("hours", [0, -1])
def test_the_last_event_counts_within_a_microsecond_or_after_the_clock_went_back(recording, store, monkeypatch, hours):
    one = answer_now("heat")
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


def test_a_damaged_line_and_one_that_the_database_rejects_hold_up_no_other(folder, url, store, monkeypatch):
    monkeypatch.setattr(recorder, "_LINGER", 60)
    good = [answer_now("heat") for _ in range(3)]
    bad = answer_now(shown=(Shown("", 2**63, "heat", "3"),))  # larger than a column's integers
    with closing(FeedbackRecorder(folder, url)) as recording:
        recording.add_answer(good[0])
        recording.add_answer(bad)
        recording.add_answer(good[1])
        (records,) = folder.glob("*.journal")
        with records.open("ab") as stream:
            stream.write(b'{"time": "now"}\n[]\n{"answer_id": 3}\n{"event":\n{}\n')
        recording.add_answer(good[2])
    assert sorted(store.answers()["answer_id"]) == sorted(one.answer_id for one in good)
    assert len(refused(folder)) == 6 and any("the database rejects it" in reason for reason in refused(folder))


def test_a_bad_folder_is_refused_before_anything_is_recorded(tmp_path):
    (tmp_path / "taken").touch()
    with pytest.raises(InputError, match="taken: File exists"):
        FeedbackRecorder(tmp_path / "taken", f"sqlite:///{tmp_path}/x.db")


def _left(folder: Path, database: str, *answers) -> Path:
    """Write the journal of a service that was killed."""
    journal = Journal.create(folder, database)
    for one in answers:
        journal.append(one)
    journal.close()
    return journal.path


def test_a_journal_is_delivered_to_its_own_database(folder, url, store, tmp_path, caplog):
    """Left journals went to whatever database was named next, and were deleted."""
    other = FeedbackStore(f"sqlite:///{tmp_path}/other.db")
    mine, theirs = answer_now("heat"), answer_now("up")
    _left(folder, store.identity(folder), mine)
    path = _left(folder, other.identity(folder), theirs)
    with closing(FeedbackRecorder(folder, url)) as recording:
        until(lambda: store.counts()["answers"] == 1 and recording._stays)
    assert store.answers()["answer_id"].to_list() == [mine.answer_id] and list(folder.iterdir()) == [path]
    said = f"belongs to the database sqlite:///{os.path.relpath(tmp_path / 'other.db')}; give it with --feedback"
    assert caplog.text.count(said) == 1
    assert deliver_left(folder, other) == [] and other.answers()["answer_id"].to_list() == [theirs.answer_id]
    assert list(folder.iterdir()) == []


def test_a_database_is_the_same_for_all_its_users_and_wherever_its_folder_is(tmp_path):
    def name(url: str, folder: str) -> str:
        return FeedbackStore(url).identity(tmp_path / folder)

    here, there = (name(f"sqlite:///{tmp_path}/{place}/feedback.db", f"{place}/journal") for place in ("a", "b"))
    assert here == there == "sqlite:///../feedback.db"
    other = "postgresql+psycopg2://you@db:5432/feedback?x=y"
    assert name("postgresql://me:secret@db/feedback", "j") == name(other, "j")
    assert name("postgresql://me@db/feedback", "j") != name("postgresql://me@db/other", "j")
    assert "secret" not in name("postgresql://me:secret@db/feedback", "j")


def test_one_unusable_journal_holds_up_no_other(folder, store, monkeypatch):
    """That of another owner raised in each delivery, before those of later names."""
    paths = [_left(folder, store.identity(folder), answer_now("heat")) for _ in range(4)]
    paths.sort()
    (folder / "0.journal").mkdir()
    paths[1].write_bytes(b'{"database":\n')
    opened = os.open

    def refuse(path, *arguments, **options):
        if path == paths[0]:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    stays = deliver_left(folder, store)
    assert store.counts()["answers"] == 2
    assert [text.split(" stays: it cannot be used (")[0] for text in stays] == [
        str(folder / "0.journal"),
        str(paths[0]),
        str(paths[1]),
    ]
    assert "Permission denied" in stays[1]


def test_a_journal_without_its_first_line_names_no_database(folder, store):
    path = _left(folder, "sqlite:///nowhere.db", answer_now("heat"))
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    assert deliver_left(folder, store) == [] and store.counts()["answers"] == 1 and not path.exists()
