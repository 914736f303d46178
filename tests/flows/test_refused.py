"""What a flow refuses before it begins: told in one line on a terminal, and before any stage on a worker."""

import runpy
import shutil
import sys
from pathlib import Path

import pytest
from dvc.lock import LockError
from prefect.logging import disable_run_logger

from convrec.project.errors import InputError
from convrec.project.locks import lock_folder
from flows.monitor import monitor
from flows.pipeline import run_and_print
from flows.refresh import refresh
from tests.small_project import make_project

pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")


@pytest.fixture(scope="module")
def made(make_store, tmp_path_factory) -> Path:
    """A project that has run nothing, with an empty store."""
    project = make_project(tmp_path_factory.mktemp("refused") / "project")
    make_store(project)
    return project


@pytest.fixture
def project(made, monkeypatch) -> Path:
    """The same, entered."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def refused(project, monkeypatch, capsys):
    """Run a flow from the command line; return its status and the line that it printed, on stderr alone."""

    def run(*words: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", list(words))
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(f"flows.{words[0]}", run_name="__main__")
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.count("\n") == 1
        return ended.value.code, printed.err

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--stages", "data", "stf"], "stages: 'stf' is not a stage of dvc.yaml; give one of data, "),
        (["train", "--force", "stf"], "force: 'stf' is not a stage of dvc.yaml; give one of data, "),
        (["refresh", "--test-period", "week"], "test period 'week' is neither a month nor a span of days; give a "),
        (["refresh", "--since", "nosuch"], "nosuch: no such folder, file or git revision; give "),
    ],
)
def test_bad_input_is_told_in_one_line_before_a_run_begins(refused, words, message):
    status, output = refused(*words)
    assert status == 2 and output.startswith(message)


@pytest.mark.parametrize("flow", ["train", "refresh"])
def test_a_folder_in_which_another_run_works_is_told_before_a_run_begins(refused, flow):
    with lock_folder():
        status, output = refused(flow)
    assert status == 75 and output.startswith("another run is using this folder (process ")


def test_a_tracking_server_that_is_away_is_told_before_a_run_begins(refused, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    status, output = refused("train", "--stages", "data")
    assert status == 75 and output.startswith("MLFLOW_TRACKING_URI = 'http://127.0.0.1:9' cannot be reached (")


def test_another_dvc_process_is_told_without_a_traceback(project, capsys):
    def check() -> None:
        raise LockError("'models/sft' is busy, it is being blocked by:\n  (PID 7): dvc repro\n")

    with pytest.raises(SystemExit, match="75"):
        run_and_print("train", dict, check)
    output = capsys.readouterr().err
    assert "models/sft" in output and "(PID 7): dvc repro" in output and output.count("\n") == 1


def test_an_archive_of_the_project_is_told_what_it_lacks(refused, tmp_path, monkeypatch):
    project = make_project(tmp_path / "project")
    monkeypatch.chdir(project)
    for name in (".git", ".dvc"):
        shutil.rmtree(project / name)
        status, output = refused("train")
        assert status == 2 and "; run in a clone of the project (" in output


@pytest.mark.parametrize(("flow", "given"), [(monitor, ("yesterday",)), (refresh, ("2022-13",))])
def test_a_deployed_run_is_refused_before_any_stage(project, flow, given):
    with (
        disable_run_logger(),
        pytest.raises(InputError, match="until = 'yesterday': give a day|test period '2022-13' is neither"),
    ):
        flow.fn(*given)
    assert not (project / "data" / "processed").exists() and not (project / "runs").exists()
