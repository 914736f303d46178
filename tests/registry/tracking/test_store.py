"""Stores that are away, refuse or are damaged; the local one is made once, and never anew over lost runs."""

import multiprocessing
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service import utils

from convrec.project.errors import InputError, NoSpace, Unavailable
from convrec.registry import tracking
from convrec.registry.tracking import store
from convrec.registry.tracking.journal import FOLDER, About, Journal, upload_left
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
    ("refusing", "kind", "message"),
    [
        (401, InputError, "rejects this user .*; set MLFLOW_TRACKING_USERNAME and"),
        (403, InputError, "denies access .*; correct the name of "),
        (500, Unavailable, "cannot be reached"),
        (503, Unavailable, "cannot be reached"),
    ],
    indirect=["refusing"],
)
def test_a_server_that_refuses_or_is_in_trouble_lets_no_stage_begin(refusing, kind, message, project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{refusing}/?token=s3cret")
    with pytest.raises(kind, match=message) as error, tracking.stage_run("sft", {}, {}):
        raise AssertionError("no work without a record")
    assert "s3cret" not in str(error.value)


def test_a_full_disk_is_told_as_such(project):
    error = MlflowException("(sqlite3.OperationalError) database or disk is full [SQL: INSERT INTO runs]")
    assert isinstance(store.store_error(error), NoSpace)


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


def _tree(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("take", [shutil.copytree, shutil.move])
def test_a_copied_or_moved_project_uses_its_own_folder(take, project, make_store, monkeypatch, caplog):
    first, second = project / "of Ann, 100%", project / "taken"
    first.mkdir()
    client, experiment = make_store(first), tracking.connect(first)
    code = first / "model.py"
    code.write_text("import mlflow\nmlflow.models.set_model(lambda model_input: ['from the model'])\n")
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_text("of the first", "note.txt")
        made = mlflow.pyfunc.log_model(name="m", python_model=str(code), pip_requirements=[])
    version = mlflow.register_model(made.model_uri, "m")
    client.create_model_version("m", f"{run.info.artifact_uri}/m", run.info.run_id)
    journal = Journal(first / FOLDER, About(run.info.run_id, "", tracking.shown_uri(first), 1))
    journal.append_file(b"buffered", "left.txt")
    journal.close()
    before, second_uri = _tree(first), (second / LOCAL_FOLDER / "artifacts").as_uri()
    take(first, second)
    os.environ.pop("MLFLOW_TRACKING_URI")  # as for a new process: MLflow sets it,
    utils._artifact_repos_cache.clear()  # and keeps where each run's artifacts are
    assert not caplog.messages
    for _ in range(2):  # the second start finds all done
        assert tracking.connect(second) == experiment
    (told,) = [message for message in caplog.messages if "copied or moved" in message]
    assert str(first) in told and str(second) in told
    with mlflow.start_run(experiment_id=experiment) as another:
        mlflow.log_text("of the second", "note.txt")
    with mlflow.start_run(run_id=run.info.run_id):
        mlflow.log_text("more", "more.txt")
    assert [text for text, _ in upload_left(second)] == [f"a run ({run.info.run_id}): sent"]
    assert another.info.artifact_uri.startswith(second_uri)
    assert mlflow.get_run(run.info.run_id).info.artifact_uri.startswith(second_uri)
    assert (_tree(first) if first.exists() else before) == before
    shutil.rmtree(first, ignore_errors=True)
    assert mlflow.pyfunc.load_model(f"models:/m/{version.version}").predict(["x"]) == ["from the model"]
    sources = {one.source for one in mlflow.MlflowClient().search_model_versions()}
    assert sources == {made.model_uri, f"{second_uri}/{run.info.run_id}/artifacts/m"}
    assert {path.name for path in (second / LOCAL_FOLDER).rglob("*.txt")} >= {"note.txt", "more.txt", "left.txt"}


def test_a_database_elsewhere_that_projects_share_stays_as_it_is(project, make_store, monkeypatch, caplog):
    first, second = project / "first", project / "second"
    for folder in (first, second):
        folder.mkdir()
    client = make_store(first)
    experiment = tracking.connect(first)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{first / DATABASE}")
    assert tracking.connect(second) == experiment and not caplog.messages
    assert client.get_experiment(experiment).artifact_location == (first / LOCAL_FOLDER / "artifacts").as_uri()


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
