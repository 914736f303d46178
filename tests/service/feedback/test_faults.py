"""What a recorder goes through, each really done: nothing that was recorded is lost, and nothing is stored twice."""

import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from convrec.project.errors import NoSpace
from convrec.service.feedback import FeedbackStore
from convrec.service.feedback.recorder import FeedbackRecorder
from tests.answers import answer_now
from tests.service.feedback.conftest import until

ROOT = Path(__file__).parents[3]
# A service that records as fast as it can until it is killed, and prints the id of each recorded answer and event.
_SERVICE = """
import sys
from pathlib import Path
from convrec.service.feedback import new_answer_id, recorder
from tests.answers import answer_now

recorder._LINGER = 0.01
recording = recorder.FeedbackRecorder(Path(sys.argv[1]), sys.argv[2])
while True:
    answer = answer_now("heat", "up", user_id="u")
    if recording.add_answer(answer):
        print("answer", answer.answer_id, flush=True)
    event_id = new_answer_id(answer.time)
    recording.add_event(answer.answer_id, "", "up", "accepted", event_id)
    print("event", event_id, flush=True)
"""

SQLITE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def sqlite_path(url) -> Path:
    return Path(url.removeprefix("sqlite:///"))


@SQLITE
def test_an_answer_never_waits_for_a_locked_database(recording, store, sqlite_path):
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for _ in range(50):
            one, start = answer_now("heat"), time.monotonic()
            assert recording.add_answer(one)
            recording.add_event(one.answer_id, "", "heat", "accepted")
            assert time.monotonic() - start < 1
        assert recording.backlog == 100
        other.execute("ROLLBACK")
    until(lambda: recording.backlog == 0)
    assert store.counts() == {"answers": 50, "shown": 50, "events": 50}


@SQLITE
def test_a_database_that_is_moved_away_and_back_loses_nothing(recording, store, sqlite_path, caplog):
    recording.add_answer(answer_now("heat"))
    until(lambda: recording.backlog == 0)
    away = sqlite_path.rename(sqlite_path.with_name("away.db"))
    recording.add_answer(answer_now("heat"))
    until(lambda: recording.last_error is not None)
    assert "feedback.db is gone; restore the file" in caplog.text and not sqlite_path.exists()
    away.rename(sqlite_path)
    until(lambda: recording.backlog == 0 and recording.last_error is None)
    assert store.counts()["answers"] == 2


@pytest.mark.slow
def test_a_database_server_that_is_killed_and_started_again_loses_nothing(postgres, postgres_url, folder):
    def record(number: int) -> None:
        for _ in range(number):
            one = answer_now("heat", "up")
            assert recording.add_answer(one)
            recording.add_event(one.answer_id, "", "up", "accepted")

    with closing(FeedbackStore(postgres_url)) as store, closing(FeedbackRecorder(folder, postgres_url)) as recording:
        record(20)
        until(lambda: recording.backlog == 0)
        postgres.stop("postgres", signal.SIGKILL)
        start = time.monotonic()
        record(100)
        assert time.monotonic() - start < 10
        until(lambda: recording.last_error is not None)
        old, start = answer_now("heat"), time.monotonic()
        recording.add_event(old.answer_id, "", "heat", "accepted")  # of another service: not checked now
        assert time.monotonic() - start < 2
        postgres.start("postgres")
        store.write([old], [])
        until(lambda: recording.backlog == 0, 60)
        assert store.counts() == {"answers": 121, "shown": 241, "events": 121}
        assert store.outcomes()["accepted"].sum() == 121


@contextmanager
def full_disk(most: int):
    """Let no file of this process grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@SQLITE
def test_a_full_disk_loses_only_what_was_refused(recording, store, caplog):
    stored, refused = [], []
    with full_disk(3000):
        for _ in range(60):
            one = answer_now("heat")
            (stored if recording.add_answer(one) else refused).append(one.answer_id)
        with pytest.raises(NoSpace, match="the feedback was not recorded, because the disk is full"):
            for _ in range(3000):
                recording.add_event(stored[0], "", "heat", "accepted")
    assert len(stored) > 2 and len(refused) > 2
    assert caplog.text.count("cannot be written to") < 5
    last = answer_now("heat")
    assert recording.add_answer(last)
    until(lambda: recording.backlog == 0)
    assert sorted(store.answers()["answer_id"]) == sorted([*stored, last.answer_id])


@SQLITE
def test_a_killed_service_loses_nothing_that_it_recorded(store, url, folder):
    lines = []
    for number in (40, 150):
        command = [sys.executable, "-c", _SERVICE, str(folder), url]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            lines += [service.stdout.readline() for _ in range(number)]
            service.kill()
            lines += service.stdout.readlines()
    assert any(folder.iterdir())
    with closing(FeedbackRecorder(folder, url)) as recording:
        until(lambda: recording.last_error is None and len(list(folder.iterdir())) == 1)
    recorded = [line.split() for line in lines if line.endswith("\n")]
    ids = {kind: {name for what, name in recorded if what == kind} for kind in ("answer", "event")}
    assert len(ids["answer"]) > 90
    # The last record of each kill may be stored without having been printed.
    for kind, column in (("answer", store.answers()["answer_id"]), ("event", store.events()["event_id"])):
        assert ids[kind] <= set(column) and len(column) <= len(ids[kind]) + 2 and column.is_unique().all()


@pytest.mark.parametrize("is_shared", [False, True])
def test_two_services_on_one_database_store_each_record_once(tmp_path, url, store, is_shared):
    folders = [tmp_path / "a", tmp_path / ("a" if is_shared else "b")]
    with closing(FeedbackRecorder(folders[0], url)) as one, closing(FeedbackRecorder(folders[1], url)) as other:
        for number in range(50):
            answer = answer_now("heat", "up")
            one.add_answer(answer)
            for recording in (other, one, other):  # a client that sends it again reaches the other service
                recording.add_event(answer.answer_id, "", "up", "accepted", f"e{number}")
        until(lambda: one.backlog == other.backlog == 0)
    assert store.counts() == {"answers": 50, "shown": 100, "events": 50}
    assert store.outcomes()["accepted"].sum() == 50
