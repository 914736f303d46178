"""Deliveries that fail, are refused, and are never answered."""

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from convrec.registry import tracking
from convrec.registry.tracking import delivery
from convrec.registry.tracking.delivery import Delivery, Undelivered, upload_left
from convrec.registry.tracking.journal import FOLDER, About, Journal, left_journals

REFUSED = MlflowException("a bad name", error_code=1000)  # INVALID_PARAMETER_VALUE


class Client:
    """MLflow's client as delivery uses it: keeps what it is sent, and raises `faults` for what they name."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.sizes: list[int] = []
        self.faults: dict[str, Exception] = {}
        self.stage, self.status = "active", "RUNNING"

    def get_run(self, run_id):
        return SimpleNamespace(info=SimpleNamespace(lifecycle_stage=self.stage, status=self.status))

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        self._take(*(f"{one.key} {one.step}" for one in metrics), *(one.key for one in (*params, *tags)))

    def log_artifact(self, run_id, path, folder):
        self._take(f"{Path(path).name}: {Path(path).read_text()}")

    def set_terminated(self, run_id, status, at):
        self._take(status)

    def _take(self, *entries: str) -> None:
        self.sizes.append(len(entries))
        for entry in entries:
            if entry in self.faults:
                raise self.faults[entry]
        self.sent += entries


@pytest.fixture
def client(monkeypatch) -> Client:
    made = Client()
    monkeypatch.setattr(delivery.mlflow, "MlflowClient", lambda uri: made)
    return made


def _about(run_id: str = "r1") -> About:
    return About(run_id, "sft", tracking.shown_uri(), 1)


def _left(project: Path) -> list[str]:
    return sorted(path.name for path in (project / FOLDER).iterdir())


def test_calls_respect_the_limits_of_mlflow(project, client):
    journal = Journal.create(project / FOLDER, _about())
    journal.append("params", params={f"p{number}": "1" for number in range(250)})
    for step in range(90):
        journal.append("metrics", step=step, metrics={f"m{number}": 1.0 for number in range(25)})
    journal.append("tags", tags={f"t{number}": "1" for number in range(101)})
    Delivery(journal, "x").send()
    assert client.sizes == [1000, 1000, 250, 100, 100, 50, 100, 1]
    assert len(set(client.sent)) == len(client.sent) == 250 + 90 * 25 + 101


def test_a_refused_record_delays_no_other_and_is_kept(project, client, caplog):
    client.faults = {"bad 1": REFUSED, "gone.txt: kept": REFUSED}
    journal = Journal.create(project / FOLDER, _about())
    for step in range(3):
        journal.append("metrics", step=step, metrics={"bad" if step == 1 else "loss": 1.0})
    journal.append_file(b"kept", "gone.txt")
    journal.append_file(b"kept", "a.txt")
    journal.append("status", status="FINISHED")
    journal.release()
    with journal.path.open("ab") as stream:
        stream.write(
            b'{"kind":"metrics","at":1,"metrics":{"bad":1.0}}\n[]\n{"kind":"artifact","path":"..","file":"x"}\n'
        )
        stream.write(b'{"kind":"metr')
    (upload,) = upload_left(project)
    assert client.sent == ["loss 0", "loss 2", "FINISHED", "a.txt: kept"]
    assert "sent 2 metrics, 1 status, 1 artifact; refused records are kept in" in upload.text
    assert caplog.text.count("MLflow refuses a record of run r1") == 5
    assert "a bad name" in caplog.text and "cut short" in caplog.text
    assert _left(project) == ["r1.files", "r1.refused"]


def test_artifacts_that_fail_delay_no_metrics(project, client):
    """The store behind a server that answers is down: MLflow's client reports its 500 as the server's own."""
    client.faults["a.txt: kept"] = MlflowException("API request failed with error code 500 != 200")
    journal = Journal.create(project / FOLDER, _about())
    journal.append_file(b"kept", "a.txt")
    journal.append("metrics", step=0, metrics={"loss": 1.0})
    journal.append_file(b"kept", "b.txt")
    sending = Delivery(journal, "x")
    for step in range(1, 4):
        with pytest.raises(Undelivered, match="error code 500"):
            sending.send()
        journal.append("metrics", step=step, metrics={"loss": 1.0})
    assert client.sent == ["loss 0", "loss 1", "loss 2"] and journal.sent == journal.refused == 0
    client.faults.clear()
    sending.send()
    assert client.sent[3:] == ["loss 3", "a.txt: kept", "b.txt: kept"]
    assert journal.sent == journal.path.stat().st_size


def test_a_run_that_the_server_has_not_is_refused_as_a_whole(project, client, caplog):
    client.stage, client.faults["loss 0"] = "deleted", REFUSED
    run = tracking.Run(_about(), project)
    run.log_metrics({"loss": 1.0}, 0)
    run._sender.join(0.1)
    run.log_metrics({"loss": 1.0}, 1)
    run.close("FINISHED")
    assert client.sent == [] and caplog.text.count("MLflow refuses the run r1: it was deleted") == 1
    assert len((project / FOLDER / "r1.refused").read_bytes().splitlines()) == 4 and _left(project) == ["r1.refused"]


def test_recording_does_not_wait_for_a_server_that_never_answers(project, monkeypatch, caplog):
    monkeypatch.setattr(delivery, "_STALL", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        run = tracking.Run(_about(), project)
        run.log_metrics({"loss": 1.0}, 0)
        connection, _ = silent.accept()  # now the sender waits for an answer
        for step in range(1, 200):
            run.log_metrics({"loss": 1.0}, step)
        run.log_text("kept", "a.txt")
        run.close("FINISHED")
        assert run._sender.is_alive() and "buffered in" in caplog.text
        (left,) = left_journals(project / FOLDER)
        assert len(left.read_bytes().splitlines()) == 1 + 202
        connection.close()
    run._sender.join(20)
    assert list(Journal.adopt(left).records(0))[-1][0]["status"] == "FINISHED"


def test_a_damaged_journal_delays_no_other(project, client, caplog):
    for run_id, content in (("r1", b""), ("r2", b'{"run_id": "r2"}\n'), ("r3", b"\0\0")):
        Journal.create(project / FOLDER, _about(run_id)).release()
        (project / FOLDER / f"{run_id}.jsonl").write_bytes(content)
    whole = Journal.create(project / FOLDER, _about("r4"))
    whole.append("metrics", step=0, metrics={"loss": 1.0})
    whole.release()
    assert [upload.text for upload in upload_left(project)] == ["sft (r4): sent 1 metrics; ended as KILLED"]
    assert client.sent == ["loss 0", "KILLED"] and caplog.text.count("does not name a run") == 3
    assert _left(project) == ["r1.refused", "r2.refused", "r3.refused"]


def test_a_position_that_cannot_be_written_keeps_the_journal(project, client, monkeypatch, caplog):
    def full(self, position):
        raise OSError("No space left on device")

    monkeypatch.setattr(Journal, "mark", full)
    run = tracking.Run(_about(), project)
    run.log_metrics({"loss": 1.0}, 0)
    run.close()
    assert "No space left" in caplog.text and "convrec tracking sync" in caplog.text and _left(project) == ["r1.jsonl"]


def test_a_silent_run_records_nothing(project):
    run = tracking.SilentRun()
    run.log_metrics({"loss": 1.0}, step=3)
    run.log_params({"a": 1})
    run.log_artifact(project / "nowhere")
    run.log_dataset(project / "nowhere", "train")
    run.close("FINISHED")
    assert list(project.iterdir()) == []
