"""Stores that are away, refuse or are damaged; the local one is made once, and never anew over lost runs."""

import multiprocessing
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from convrec.project.errors import InputError, NoSpace, Unavailable
from convrec.registry import tracking
from convrec.registry.tracking import store
from convrec.registry.tracking.store import LOCAL_FOLDER
from tests.registry.tracking.server import free_port

DATABASE = LOCAL_FOLDER / "mlflow.db"


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
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize(
    ("refusing", "message"),
    [(401, "rejects this user .*; set MLFLOW_TRACKING_USERNAME and"), (403, "denies access .*; correct the name of ")],
    indirect=["refusing"],
)
def test_a_server_that_refuses_the_user_is_bad_input(refusing, message, project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{refusing}/?token=s3cret")
    with pytest.raises(InputError, match=message) as error:
        tracking.connect()
    assert "s3cret" not in str(error.value)


def test_a_full_disk_is_told_as_such(project):
    error = MlflowException("(sqlite3.OperationalError) database or disk is full [SQL: INSERT INTO runs]")
    assert isinstance(store.store_error(error), NoSpace)


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


@pytest.mark.parametrize("password", ["s3cret-word", "s3cret@word", "s3cret/word"])
def test_credentials_in_the_uri_are_refused_and_not_shown(project, monkeypatch, password):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://somebody:{password}@host")
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI has a user; leave it out, and set MLFLOW_") as error:
        tracking.connect()
    assert "s3cret" not in str(error.value) and "word@" not in str(error.value)


@pytest.mark.parametrize(("error", "status"), [(Unavailable("it is away"), 75), (InputError("it is away"), 2)])
def test_the_command_line_distinguishes_them_by_exit_status(project, monkeypatch, cli, error, status):
    def fail(*_):
        raise error

    monkeypatch.setattr(store, "connect", fail)
    assert cli("tracking", "sync") == (status, "", "convrec tracking sync: it is away\n")


def _connect(folder: Path, barrier) -> None:
    os.chdir(folder)
    barrier.wait(60)
    assert tracking.connect() == "1"


@pytest.mark.slow
def test_processes_that_make_the_store_at_once_wait_for_each_other(project):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_connect, args=(project, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_a_damaged_database_is_bad_input_and_stays(project):
    (project / LOCAL_FOLDER).mkdir()
    (project / DATABASE).write_bytes(b"no database" * 100)
    for _ in range(2):
        with pytest.raises(InputError, match=r"mlflow.db' is damaged \(.*file is not a database.*; restore it"):
            tracking.connect()
    assert (project / DATABASE).read_bytes() == b"no database" * 100
