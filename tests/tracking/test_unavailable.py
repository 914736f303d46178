"""Servers that are away, that refuse, and that never answer."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow.exceptions import MlflowException

from convrec import tracking
from convrec.errors import InputError, Unavailable
from convrec.tracking import delivery
from convrec.tracking import journal as journals
from convrec.tracking import run as runs
from convrec.tracking.journal import About
from tests.tracking.server import free_port
from tests.tracking.unsent import waiting


@pytest.fixture
def refusing(request):
    """A server that answers every call with one status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(request.param)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://somebody:s3cret-word@127.0.0.1:{server.server_port}"
    server.shutdown()


class Client:
    """MLflow's client as delivery uses it: keeps what it is sent, and raises `faults` for what they name."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.run_ids: list[str] = []
        self.tries: list[int] = []
        self.faults: dict[str, Exception] = {}

    def get_run(self, run_id):
        return SimpleNamespace(info=SimpleNamespace(lifecycle_stage="active", status="FINISHED"))

    def log_batch(self, run_id, metrics=(), params=(), tags=()):
        self._take(run_id, *(f"{metric.key} {metric.step}" for metric in metrics))

    def log_artifact(self, run_id, path, folder):
        self._take(run_id, f"{Path(path).name}: {Path(path).read_text()}")

    def set_terminated(self, run_id, status, at):
        self._take(run_id, status)

    def _take(self, run_id: str, *entries: str) -> None:
        self.tries.append(len(entries))
        for entry in entries:
            if entry in self.faults:
                raise self.faults[entry]
        self.sent += entries
        self.run_ids += [run_id] * len(entries)


@pytest.fixture
def client(monkeypatch) -> Client:
    made = Client()
    monkeypatch.setattr(delivery.mlflow, "MlflowClient", lambda uri: made)
    return made


def _journal(project: Path) -> journals.Journal:
    return journals.Journal.create(project, About("r1", "sft", "x", True, 1))


@pytest.mark.parametrize("refusing", [401, 403], indirect=True)
def test_a_server_that_refuses_the_user_is_bad_input(refusing, project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", refusing)
    with pytest.raises(InputError, match="rejects this user .*MLFLOW_TRACKING_USERNAME") as caught:
        tracking.connect()
    assert "s3cret-word" not in str(caught.value) and "somebody" not in str(caught.value)


@pytest.mark.parametrize("refusing", [500, 503], indirect=True)
def test_a_server_in_trouble_is_unavailable(refusing, project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", refusing)
    with pytest.raises(Unavailable, match="cannot be reached"), tracking.stage_run("sft", {}, {}, project / "r.json"):
        raise AssertionError("no work without a record")
    assert not (project / "r.json").exists()


def test_no_server_is_unavailable_and_an_unknown_scheme_is_bad_input(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match="start the server, or unset the variable"):
        tracking.connect()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "foo://x")
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI = 'foo://x' cannot be used"):
        tracking.connect()


def test_the_command_line_tells_them_apart_by_exit_status(project, monkeypatch, cli):
    def left(error: Exception):
        def answer(folder):
            raise error

        return answer

    for error, status, words in (
        (Unavailable("the server is away"), 75, "convrec tracking: the server is away\n"),
        (InputError("MLFLOW_TRACKING_URI = 1"), 2, "convrec tracking: MLFLOW_TRACKING_URI = 1\n"),
    ):
        monkeypatch.setattr(journals, "left_journals", left(error))
        assert cli("tracking", "sync") == (status, "", words)


def test_recording_does_not_wait_for_a_server_that_never_answers(project, monkeypatch, caplog):
    monkeypatch.setattr(delivery, "_STALL", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        run = tracking.Run(About("r1", "sft", tracking.shown_uri(), True, journals.now_ms()), project)
        run.log_metrics({"loss": 1.0}, 0)
        connection, _ = silent.accept()  # now the sender waits for an answer
        for step in range(1, 200):
            run.log_metrics({"loss": 1.0}, step)
        run.log_text("kept", "a.txt")
        run.close("FINISHED")
        assert run._sender.is_alive() and "buffered in" in caplog.text
        lines = (project / journals.FOLDER / "r1" / "records.jsonl").read_text().splitlines()
        assert len(lines) == 202
        connection.close()
    run._sender.join(20)
    (left,) = journals.left_journals(project / journals.FOLDER)
    assert journals.Journal.adopt(left).last_status()[0] == "FINISHED"


def test_artifacts_that_fail_hold_up_no_metrics(project, client):
    client.faults["a.txt: kept"] = OSError("no such bucket")
    run = tracking.Run(About("r1", "sft", "x", True, 1), project)
    run.log_text("kept", "a.txt")
    run.log_metrics({"loss": 1.0}, 0)
    run.log_metrics({"loss": 1.0}, 1)
    run.close("FINISHED")
    assert client.sent == ["loss 0", "loss 1", "FINISHED"]
    (left,) = journals.left_journals(project / journals.FOLDER)
    journal = journals.Journal.adopt(left)
    assert [record["path"] for record, _ in journal.unsent("artifacts")] == ["a.txt"]
    assert list(journal.unsent("records")) == []


def test_what_always_breaks_a_server_that_answers_is_set_aside(project, client):
    client.faults["bad 0"] = MlflowException("no reason")
    journal = _journal(project)
    journal.append("metrics", step=0, metrics={"a": 1.0, "bad": 2.0, "b": 3.0})
    sending = delivery.Delivery(journal, "x")
    for _ in range(3):
        with pytest.raises(delivery.Undelivered, match="no reason"):
            sending.send()
    assert client.sent == [] and client.tries == [3, 3, 3]
    sending.send()
    assert client.sent == ["a 0", "b 0"] and not waiting(journal)
    assert '"key":"bad"' in (project / journals.REFUSED).read_text()


def test_records_that_lack_a_field_are_set_aside_and_hold_up_no_other(project, client, caplog):
    journal = _journal(project)
    (journal.path / "records.jsonl").write_text(
        '{"kind":"metrics","at":1,"metrics":{"bad":1.0}}\n{"kind":"metrics","at":1,"step":0,"metrics":{"a":1.0}}\n'
        '{"kind":"artifact","at":1}\n{"kind":"artifact","at":1,"file":"..","path":".."}\n[]\n'
        '{"kind":"status","at":1}\n{"kind":"status","at":2,"status":"FINISHED"}\n'
    )
    journal.append_file(b"kept", "a.txt")
    sending = delivery.Delivery(journal, "x")
    sending.send()
    assert sorted(client.sent) == ["FINISHED", "a 0", "a.txt: kept"] and not waiting(journal)
    refused = (project / journals.REFUSED).read_text().splitlines()
    assert len(refused) == sending.sent["refused"] == 5 and "missing or invalid: step" in refused[0]
    assert "missing or invalid: file, path" in caplog.text


def test_an_artifact_waits_for_a_store_that_fails_behind_a_server_that_answers(project, client):
    """MLflow's client tells a proxied store's 500 as it tells the server's own."""
    client.faults["a.txt: kept"] = MlflowException("API request failed with error code 500 != 200")
    journal = _journal(project)
    journal.append_file(b"kept", "a.txt")
    sending = delivery.Delivery(journal, "x")
    for _ in range(6):
        with pytest.raises(delivery.Undelivered, match="error code 500"):
            sending.send()
    assert waiting(journal) and not (project / journals.REFUSED).exists()
    client.faults.clear()
    sending.send()
    assert client.sent == ["a.txt: kept"] and not waiting(journal)


def test_one_journal_with_torn_files_holds_up_no_other(project, client, caplog):
    """The first lost what it tells of its run, the second how far it was sent: up to its first artifact, which went."""
    for started, run_id in enumerate(("r1", "r2", "r3")):
        about = About(run_id, "sft", tracking.shown_uri(), True, started)
        journal = journals.Journal.create(project / journals.FOLDER, about)
        for name in ("a.txt", "b.txt"):
            journal.append_file(b"kept", name)
        if run_id == "r1":
            (journal.path / "run.json").write_bytes(b"")
        if run_id == "r2":
            first = next(record for record, _ in journal.unsent("artifacts"))
            journal.file(first).unlink()
            (journal.path / "position.json").write_bytes(b"")
        journal.release()
    replayed = list(tracking.replay_left(project))
    assert [(each.run_id, each.problem) for each in replayed] == [("r2", None), ("r3", None)]
    names = [entry.partition(":")[0] for entry in client.sent]
    assert list(zip(client.run_ids, names, strict=True)) == [("r2", "b.txt"), ("r3", "a.txt"), ("r3", "b.txt")]
    assert not (project / journals.FOLDER / journals.REFUSED).exists()
    assert "r1/run.json" in caplog.text and [path.name for path in (project / journals.FOLDER).iterdir()] == ["r1"]


def test_journals_that_cannot_be_looked_for_stop_no_run(project, monkeypatch, caplog):
    def look(folder: Path) -> list[Path]:
        raise PermissionError("not yours")

    monkeypatch.setattr(journals, "left_journals", look)
    runs._replay_in_background(project)
    for thread in threading.enumerate():
        if thread.name == "convrec tracking replay":
            thread.join(20)
    assert "could not be sent (not yours)" in caplog.text


def test_a_position_that_cannot_be_written_is_no_end(project, client, monkeypatch, caplog):
    """What was sent is not taken for done: the journal stays, for others to send."""

    def full(self, lane, position):
        raise OSError("No space left on device")

    monkeypatch.setattr(journals.Journal, "mark_sent", full)
    run = tracking.Run(About("r1", "sft", "x", True, 1), project)
    run.log_metrics({"loss": 1.0}, 0)
    run.close()
    assert "No space left" in caplog.text and "convrec tracking sync" in caplog.text
    (left,) = journals.left_journals(project / journals.FOLDER)
    assert waiting(journals.Journal.adopt(left))


def test_a_silent_run_records_nothing(project):
    run = tracking.SilentRun()
    run.log_metrics({"loss": 1.0})
    run.log_params({"a": 1})
    run.set_tags({"a": "b"})
    run.log_text("a", "b")
    run.log_artifact(project / "nowhere")
    run.log_dataset(project / "nowhere", "train")
    run.log_versions({"a": b""})
    run.close("FINISHED")
    assert list(project.iterdir()) == []
