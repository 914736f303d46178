"""Recorded answers moved to the simulated time, in a real database that a recorder delivers to."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from convrec.errors import Unavailable
from convrec.experiments.simulated_time import Simulated, move_to
from convrec.feedback.recorder import FeedbackRecorder
from convrec.feedback.records import Answer, Shown, new_answer_id
from convrec.feedback.store import FeedbackStore

DAY = datetime(2022, 4, 1, 12, tzinfo=UTC)


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/feedback.db"


@pytest.fixture
def recorder(url, tmp_path):
    recorder = FeedbackRecorder(tmp_path / "journal", url)
    yield recorder
    recorder.close()


def _answer(recorder: FeedbackRecorder) -> str:
    now = datetime.now(UTC)
    answer_id = new_answer_id(now)
    shown = (Shown("", 1, "heat", "1"),)
    assert recorder.add_answer(Answer(answer_id, now, "u", None, None, 0.1, None, shown))
    return answer_id


def test_answers_move_and_events_keep_their_distance(recorder, url):
    moved = [_answer(recorder) for _ in range(3)]
    other = _answer(recorder)
    for answer_id in moved[:2]:
        recorder.add_event(answer_id, "", "heat", "accepted")
    recorded = {answer_id: Simulated(DAY + timedelta(hours=n), int(n < 2)) for n, answer_id in enumerate(moved)}
    move_to(url, recorded)  # waits for the recorder
    recorder.close()
    store = FeedbackStore(url)
    times = dict(store.answers().select("answer_id", "time").iter_rows())
    assert {answer_id: times[answer_id] for answer_id in moved} == {key: one.time for key, one in recorded.items()}
    assert times[other] > datetime(2026, 1, 1, tzinfo=UTC)
    for row in store.events().iter_rows(named=True):
        assert timedelta(0) <= row["time"] - times[row["answer_id"]] < timedelta(seconds=30)
    window = store.outcomes(DAY, DAY + timedelta(days=1))
    assert window["answer_id"].to_list() == moved and window["accepted"].to_list() == [True, True, False]


def test_answers_that_arrive_late_are_waited_for(recorder, url):
    now = datetime.now(UTC)
    answer_id = new_answer_id(now)
    answer = Answer(answer_id, now, None, None, None, 0.1, None, ())
    threading.Timer(0.3, lambda: FeedbackStore(url).write([answer], [])).start()
    move_to(url, {answer_id: Simulated(DAY, 0)})
    assert FeedbackStore(url).answers()["time"].to_list() == [DAY]


def test_another_database_is_named(url):
    FeedbackStore(url).counts()
    with pytest.raises(Unavailable, match="1 answers or events have not arrived.*give the database of the service"):
        move_to(url, {new_answer_id(DAY): Simulated(DAY, 0)}, patience=0.2)
