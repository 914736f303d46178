"""Journals that are cut short, refused, damaged, or left behind by a process that ended."""

import io
import os
import socket
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from convrec.registry import tracking
from convrec.registry.tracking import journal
from convrec.registry.tracking.journal import FOLDER, About, Delivery, Journal, upload_left

REFUSED = MlflowException("a bad name", error_code=1000)  # INVALID_PARAMETER_VALUE


class Client:
    """MLflow's client as a delivery uses it: keeps what it is sent, and raises `faults` for what they name."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.faults: dict[str, Exception] = {}

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        self._take(*(f"{one.key} {one.step}" for one in metrics), *(one.key for one in (*params, *tags)))

    def log_artifact(self, run_id, path, folder):
        self._take(f"{Path(path).name}: {Path(path).read_text()}")

    def set_terminated(self, run_id, status, at):
        self._take(f"{status} {at}" if status == "KILLED" else status)

    def _take(self, *entries: str) -> None:
        for entry in entries:
            if entry in self.faults:
                raise self.faults[entry]
        self.sent += entries


@pytest.fixture
def client(monkeypatch) -> Client:
    made = Client()
    monkeypatch.setattr(journal.mlflow, "MlflowClient", lambda uri: made)
    return made


def _new(project: Path, run_id: str = "r1") -> Journal:
    return Journal(project / FOLDER, About(run_id, "sft", tracking.shown_uri(), 1))


def _left(project: Path) -> list[str]:
    return sorted(path.name for path in (project / FOLDER).iterdir())


def test_a_refused_record_delays_no_other_and_is_kept(project, client, caplog):
    client.faults = {"bad 1": REFUSED, "gone.txt: kept": REFUSED}
    made = _new(project)
    for step in range(3):
        made.append("metrics", step=step, metrics={"bad" if step == 1 else "loss": 1.0})
    made.append_file(b"kept", "gone.txt")
    made.append_file(b"kept", "a.txt")
    made.append("status", status="FINISHED")
    made.close()
    with made.path.open("ab") as stream:
        stream.write(b'{"kind":"metrics","metrics":{"bad":1.0}}\n[]\n{"kind":"artifact","path":"..","file":"x"}\n')
        stream.write(b'{"kind":"status","status":"FINISHED","at":2}\n{"kind":"metr')
    ((text, is_waiting),) = upload_left(project)
    assert client.sent == ["loss 0", "loss 2", "FINISHED", "FINISHED", "a.txt: kept"] and not is_waiting
    assert "sent; 5 refused, kept in" in text
    assert caplog.text.count("MLflow refuses records of run r1") == 1 and "a bad name" in caplog.text
    assert _left(project) == ["r1.files", "r1.refused"]


def test_artifacts_that_fail_delay_no_metrics(project, client):
    """The store behind a server that answers is down: MLflow's client reports its 500 as the server's own."""
    client.faults["a.txt: kept"] = MlflowException("API request failed with error code 500 != 200")
    made = _new(project)
    made.append_file(b"kept", "a.txt")
    made.append_file(b"kept", "b.txt")
    sending = Delivery(made.path, "x")
    for step in range(2):
        made.append("metrics", step=step, metrics={"loss": 1.0})
        with pytest.raises(MlflowException, match="error code 500"):
            sending.send()
    client.faults.clear()
    sending.send()
    assert client.sent == ["loss 0", "loss 1", "a.txt: kept", "b.txt: kept"]


def test_recording_does_not_wait_for_a_server_that_never_answers(project, monkeypatch, caplog):
    monkeypatch.setattr(journal, "_FLUSH", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        run = tracking.Run(About("r1", "sft", tracking.shown_uri(), 1), project)
        run.log_metrics({"loss": 1.0}, 0)
        connection, _ = silent.accept()  # now the sender waits for an answer
        for step in range(1, 200):
            run.log_metrics({"loss": 1.0}, step)
        run.log_text("kept", "a.txt")
        run.close("FINISHED")
        assert run._delivery.is_alive() and "buffered in" in caplog.text
        run.log_text("too late", "b.txt")
        assert len((project / FOLDER / "r1.jsonl").read_bytes().split()) == 1 + 202
        assert list(upload_left(project)) == [], "the sender is at work"
        connection.close()
    run._delivery.join(20)
    assert _left(project) == ["r1.files", "r1.jsonl"]


def test_a_damaged_journal_delays_no_other(project, client, caplog):
    for run_id, content in (("r1", b""), ("r2", b'{"run_id": "r2"}\n'), ("r3", b"\0\0")):
        _new(project, run_id).close()
        (project / FOLDER / f"{run_id}.jsonl").write_bytes(content)
    whole = _new(project, "r4")
    whole.append("metrics", step=0, metrics={"loss": 1.0})
    whole.close()
    assert list(upload_left(project)) == [("sft (r4): sent", False)]
    assert client.sent[0] == "loss 0" and client.sent[1].startswith("KILLED 1")
    assert caplog.text.count("does not name a run") == 3
    assert _left(project) == ["r1.refused", "r2.refused", "r3.refused"]


def test_a_line_that_is_still_being_written_is_read_whole(project, client, monkeypatch):
    made = _new(project)
    made.append("metrics", step=0, metrics={"loss": 1.0})
    line = made.path.read_bytes().splitlines(keepends=True)[2]
    sending = Delivery(made.path, "http://x")

    class Growing(io.BytesIO):
        def __iter__(self):
            yield from (line[:-9], line[-9:])  # the rest arrives while the file is read

    with monkeypatch.context() as slow:
        slow.setattr(Path, "open", lambda *_: Growing())
        sending.send()
    assert (client.sent, sending.refused) == ([], 0)
    sending.send()
    assert (client.sent, sending.refused) == (["loss 0"], 0)


def test_a_journal_is_sent_by_one_process_that_may_send_it(project, client):
    running, other = _new(project), Journal(project / FOLDER, About("r2", "", "http://other", 1))
    other.close()
    waits = "a run (r2): not sent: it belongs to MLFLOW_TRACKING_URI = 'http://other'; set that to send it"
    assert list(upload_left(project)) == [(waits, True)]
    running.close()
    left = upload_left(project)
    assert next(left)[0] == "sft (r1): sent"
    (project / FOLDER / "r2.jsonl").unlink()  # another process sent it meanwhile
    assert list(left) == []


def test_an_artifact_that_cannot_be_copied_stops_nothing(project, client, caplog):
    made = _new(project)
    made.append_file(project / "nowhere.csv", "nowhere.csv")
    made.append_file(b"kept", "a.txt")
    made.close()
    list(upload_left(project))
    assert client.sent[0] == "a.txt: kept" and "is not recorded" in caplog.text and _left(project) == []


def test_a_record_that_a_full_disk_cuts_short_damages_no_other(project, client, monkeypatch, caplog):
    made = _new(project)
    assert made.path.stat().st_mode & 0o777 == 0o600
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
        made.append("metrics", step=0, metrics={"loss": 1.0})
    for step in (1, 2):
        made.append("metrics", step=step, metrics={"loss": 1.0})
    made.append("status", status="FINISHED")
    made.close()
    ((text, is_waiting),) = upload_left(project)
    assert client.sent == ["loss 1", "loss 2", "FINISHED"] and not is_waiting
    assert "sent; 1 refused" in text and "No space left" in caplog.text


def test_a_journal_of_another_owner_delays_no_other(project, client, monkeypatch):
    for run_id in ("r1", "r2"):
        _new(project, run_id).close()
    opened = os.open

    def refuse(path, *arguments, **options):
        if Path(path).name == "r1.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    (first, is_waiting), second = upload_left(project)
    assert "r1.jsonl: not sent: it cannot be used ([Errno 13] Permission denied" in first and is_waiting
    assert second == ("sft (r2): sent", False)
