"""What a run records of its data and parameters, and how a workspace gets them back: real git, DVC and MLflow."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from dvc.exceptions import CheckoutError
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.rwlock import rwlock

from convrec import tracking
from convrec.errors import InputError, Unavailable, outside_cause
from convrec.files.yaml import read_yaml
from convrec.paths import Paths
from convrec.tracking import versions
from convrec.versions.restore import restore

GRAPH = f"""stages:
  data:
    cmd: {sys.executable} make.py ${{data.path}}
    deps:
      - ${{data.path}}
      - make.py
    params:
      - seed
    outs:
      - data/processed
    metrics:
      - metrics/evaluate.json:
          cache: false
"""
STAGE = """import json, pathlib, shutil, sys
shutil.copytree(sys.argv[1], "data/processed")
pathlib.Path("metrics").mkdir(exist_ok=True)
pathlib.Path("metrics/evaluate.json").write_text(json.dumps({"rows": len(list(pathlib.Path(sys.argv[1]).iterdir()))}))
"""
RAW, UNICODE = "data/raw/films", "Amélie.txt"


def _git(*arguments: str) -> str:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _commit(message: str) -> str:
    _git("add", "-A")
    _git("commit", "--quiet", "--allow-empty", "-m", message)
    return _git("rev-parse", "HEAD")


def _parameters(seed: int, path: str = RAW) -> None:
    Path("params.yaml").write_text(f"seed: {seed}\ndata:\n  path: {path}\n")


def _raw(label: str, folder: str = RAW) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in ("catalog", "train", "validation", "test"):
        pd.DataFrame({"title": [f"{name} {label}"]}).to_parquet(Path(folder) / f"{name}.parquet")
    (Path(folder) / UNICODE).write_text(f"{label}\n")


def _add(path: str = RAW) -> None:
    with Repo() as repo:
        repo.add(path)


def _pipeline(monkeypatch) -> tuple[str, str]:
    """Run the graph as a flow does; return the ids of the pipeline's run and of its stage's."""
    parent = tracking.start_pipeline_run("train tiny", {})
    monkeypatch.setenv(tracking.PARENT_VARIABLE, parent)
    with tracking.stage_run("data", {}, {}, Paths().run_id("data")) as run, Repo() as repo:
        repo.reproduce()
    monkeypatch.delenv(tracking.PARENT_VARIABLE)
    Paths().run_report.write_text("report")  # as the flow does before it ends the run
    tracking.end_pipeline_run(parent, Paths(), "FINISHED")
    return parent, run.run_id


def _start() -> None:
    _git("init", "--quiet")
    Repo.init(".").close()
    Path(".dvc/config").write_text(
        "[core]\n    analytics = false\n    remote = storage\n['remote \"storage\"']\n    url = ../storage\n"
    )
    Path(".gitignore").write_text("/mlruns/\n/runs/\n/storage/\n/previous/\n/data/processed\n")
    Path("dvc.yaml").write_text(GRAPH)
    Path("make.py").write_text(STAGE)


@dataclass
class History:
    """A project with two runs of different data and parameters, all committed; the workspace is the second's."""

    folder: Path
    first: str
    first_stage: str
    second: str
    commits: tuple[str, str]


@pytest.fixture(scope="module")
def past(make_store, tmp_path_factory) -> History:
    folder = tmp_path_factory.mktemp("past")
    make_store(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        _start()
        commits, runs = [], []
        for seed, label in ((1, "first"), (2, "second")):
            _parameters(seed)
            _raw(label)
            _add()
            runs.append(_pipeline(monkeypatch))
            with Repo() as repo:
                repo.push()
            commits.append(_commit(label))
    return History(folder, *runs[0], runs[1][0], (commits[0], commits[1]))


@pytest.fixture
def history(past, tmp_path, monkeypatch) -> History:
    """A copy of that project, which is the working folder."""
    folder = tmp_path / "project"
    shutil.copytree(past.folder, folder, symlinks=True)
    monkeypatch.chdir(folder)
    return History(folder, past.first, past.first_stage, past.second, past.commits)


def _workspace() -> dict[str, bytes]:
    """Return every file that a restore may touch."""
    hidden = (".git", ".dvc", "mlruns", "storage")
    files = [path for path in Path().rglob("*") if path.is_file() and path.parts[0] not in hidden]
    return {path.as_posix(): path.read_bytes() for path in files}


def _refused(run_id: str, force: bool = False) -> str:
    """Return the message of a restore that must fail and change nothing."""
    before = _workspace()
    with pytest.raises(InputError) as error:
        restore(run_id, force=force)
    assert _workspace() == before
    return str(error.value)


def _is_first() -> bool:
    titles = {pd.read_parquet(f"{folder}/train.parquet")["title"][0] for folder in (RAW, "data/processed")}
    texts = {Path(folder, UNICODE).read_text() for folder in (RAW, "data/processed")}
    return titles == {"train first"} and texts == {"first\n"} and read_yaml(Path("params.yaml"))["seed"] == 1


def _forget(*folders: str) -> None:
    for folder in folders:
        shutil.rmtree(folder)


def test_a_run_records_the_files_and_the_hashes(history):
    tracking.connect()
    client = mlflow.MlflowClient()
    parent = client.get_run(history.second)
    assert parent.data.tags["mlflow.source.git.commit"] == history.commits[0]
    recorded = tracking.recorded_versions(history.second)
    assert recorded.files == {
        name: Path(name).read_bytes() for name in ("params.yaml", "dvc.yaml", "dvc.lock", f"{RAW}.dvc")
    }
    assert parent.data.tags[versions.DIGEST_TAG] == versions.digest(recorded.files)


def test_ignored_files_are_no_versions(history):
    for folder, rule in (("by_git", ".gitignore"), ("by_dvc", ".dvcignore")):
        Path(folder).mkdir()
        Path(folder, "x.dvc").write_text("outs: []\n")
        with Path(rule).open("a") as stream:
            stream.write(f"/{folder}\n")
    Path("new folder").mkdir()
    Path("new folder", "é.dvc").write_text("outs:\n- md5: abc\n  path: é\n")
    names = ["params.yaml", "dvc.yaml", "dvc.lock"]
    assert list(versions.read_versions()) == [*names, f"{RAW}.dvc", "new folder/é.dvc"]
    assert versions.raw_hashes(versions.read_versions())["new folder/é"] == "abc"
    shutil.rmtree(".git")
    shutil.rmtree("by_git")
    shutil.rmtree("by_dvc")
    assert list(versions.read_versions()) == [*names, f"{RAW}.dvc", "new folder/é.dvc"]


@pytest.fixture
def bare(past, tmp_path, monkeypatch) -> None:
    """A working folder with a tracking store, and nothing else."""
    shutil.copytree(past.folder / "mlruns", tmp_path / "mlruns")
    monkeypatch.chdir(tmp_path)


def test_a_folder_without_dvc_records_what_there_is(bare):
    assert versions.version_tags(versions.read_versions()) == {}
    with tracking.stage_run("data", {}, {}, Path("run.json")):
        pass
    Path("x.dvc").write_text("outs: [{md5: abc, path: x}]\n")
    Path("dvc.lock").write_text("<<<<<<< no YAML: [")
    files = versions.read_versions()
    assert list(files) == ["dvc.lock"] and list(versions.version_tags(files)) == [versions.DIGEST_TAG]


def test_a_store_that_loses_artifacts_stops_no_stage(bare, monkeypatch, caplog):
    _parameters(1)

    def lost(*_, **__):
        raise RuntimeError("no such bucket")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifact", lost)
    with tracking.stage_run("data", {}, {}, Path("run.json")) as run:
        pass
    assert "no such bucket" in caplog.text
    assert mlflow.MlflowClient().get_run(run.run_id).info.status == "FINISHED"
    with pytest.raises(InputError, match="differs from what the run recorded"):
        tracking.recorded_versions(run.run_id)


def test_the_first_run_comes_back_and_then_there_is_nothing_to_do(history):
    output = restore(history.first)
    assert _is_first()
    assert "`dvc repro` has nothing to do" in output
    assert f"data restored: data/processed, {RAW}" in output
    for name in ("params.yaml", "dvc.lock", f"{RAW}.dvc"):
        assert name in output
    assert "files written: none" in (again := restore(history.first)) and "data restored: none" in again
    assert "`dvc repro` has nothing to do" in restore(history.second)
    assert not _is_first() and _git("status", "--porcelain") == ""


def test_the_run_of_a_stage_stands_for_its_pipeline(history):
    assert f"Run {history.first} (train tiny 2" in restore(history.first_stage)
    assert _is_first()


def test_the_run_of_a_stage_stands_for_itself_where_the_pipeline_failed(history):
    tracking.connect()
    mlflow.MlflowClient().set_terminated(history.first, "FAILED")
    output = restore(history.first_stage)
    assert f"Run {history.first_stage} (data)" in output and "the run had no dvc.lock yet" in output
    assert Path(RAW, UNICODE).read_text() == "first\n"
    assert "`dvc repro` would run these stages and those that depend on them: data" in output


def test_the_code_is_left_and_its_commit_told(history):
    _git("rm", "--quiet", "--cached", "make.py")
    Path("make.py").write_text(STAGE + "# another program\n")
    Path("dvc.yaml").write_text(GRAPH + "# another graph\n")
    head = _commit("other code")
    output = restore(history.second)
    assert f"HEAD is {head[:12]}; `git checkout {history.commits[0]}`" in output
    assert "dvc.yaml differs from the run's" in output and Path("dvc.yaml").read_text().endswith("another graph\n")
    assert "data (make.py)" in output


def test_what_the_cache_lacks_is_fetched(history):
    _forget(".dvc/cache", RAW, "data/processed")
    assert "`dvc repro` has nothing to do" in restore(history.first)
    assert _is_first()


def test_data_that_is_nowhere_changes_nothing(history):
    _forget(".dvc/cache", "storage")
    message = _refused(history.first)
    assert f"{RAW} (" in message and "dvc push" in message and "the remote does not have it" in message
    Path(".dvc/config").write_text("")
    assert "no default remote is configured" in _refused(history.first)


def test_what_a_stage_can_make_again_need_not_be_there(history):
    with Repo() as repo:
        made = Path(repo.cache.local.oid_to_path(read_yaml(Path("dvc.lock"))["stages"]["data"]["outs"][0]["md5"]))
    assert made.is_file()
    Path("make.py").write_text(STAGE.replace('"data/processed")', '"data/processed")\nopen("data/processed/x", "w")'))
    with Repo() as repo:
        repo.reproduce()
        only_here = repo.cache.local.oid_to_path(read_yaml(Path("dvc.lock"))["stages"]["data"]["outs"][0]["md5"])
    _commit("other stage")
    with tracking.stage_run("sft", {}, {}, Path("runs/sft.json")) as run:
        pass
    restore(history.first)
    _commit("first again")
    os.unlink(only_here)
    output = restore(run.run_id)
    assert "`dvc repro` makes them again: data/processed" in output and "would run these stages" in output
    assert Path(RAW, UNICODE).read_text() == "second\n"


def test_uncommitted_files_are_refused_or_kept(history):
    _parameters(77)
    for name in (f"{RAW}.dvc", "dvc.lock"):
        with Path(name).open("a") as stream:
            stream.write("# mine\n")
    mine = {name: Path(name).read_bytes() for name in ("params.yaml", "dvc.lock", f"{RAW}.dvc")}
    message = _refused(history.first)
    assert "params.yaml" in message and "dvc.lock" in message and f"{RAW}.dvc" in message and "--force" in message
    output = restore(history.first, force=True)
    assert _is_first() and "kept in previous/1/" in output
    assert {name: Path("previous/1", name).read_bytes() for name in mine} == mine
    _parameters(78)
    assert "kept in previous/2/" in restore(history.second, force=True)
    assert b"77" in Path("previous/1/params.yaml").read_bytes()


def test_an_ignored_file_is_in_no_commit(history):
    _git("rm", "--quiet", "--cached", "params.yaml")
    with Path(".gitignore").open("a") as stream:
        stream.write("/params.yaml\n")
    _commit("no parameters")
    _parameters(99)
    assert _git("status", "--porcelain") == "" and _refused(history.first).startswith("params.yaml:")


@pytest.mark.parametrize("folder", [RAW, "data/processed"])
def test_data_that_the_cache_does_not_hold_is_never_replaced(history, folder):
    Path(folder, UNICODE).unlink()  # a link to the cache is not written through
    Path(folder, UNICODE).write_text("mine\n")
    for force in (False, True):
        message = _refused(history.first, force)
        assert folder in message and "dvc add" in message and "dvc commit" in message


def test_changed_metrics_are_refused_or_kept(history):
    Path("metrics/evaluate.json").write_text('{"rows": "mine"}')
    Path(RAW, "more").write_text("x")
    _add()
    _commit("more data, metrics of mine")
    Path("metrics/evaluate.json").write_text('{"rows": "mine, not committed"}')
    assert "metrics/evaluate.json" in _refused(history.first)
    assert "`dvc repro` has nothing to do" in restore(history.first, force=True)
    assert "not committed" in Path("previous/1/metrics/evaluate.json").read_text()


def test_files_of_other_raw_data_are_left(history):
    _raw("other", "data/raw/other")
    _add("data/raw/other")
    Path(f"{RAW}.dvc").unlink()
    Path("data/raw/.gitignore").write_text("/other\n")
    _forget(RAW)
    _commit("other data")
    output = restore(history.first)
    assert "not in the run, left unchanged: data/raw/other.dvc" in output and _is_first()
    assert "/films" in Path("data/raw/.gitignore").read_text(), "as dvc add does"


def test_raw_data_that_overlaps_with_other_files_is_refused(history):
    Path(f"{RAW}.dvc").unlink()
    md5 = tracking.file_md5(Path(RAW, "train.parquet"))
    Path("data/raw/one.dvc").write_text(f"outs:\n- md5: {md5}\n  hash: md5\n  path: films/train.parquet\n")
    _commit("one file alone")
    message = _refused(history.first)
    assert "do not fit the current" in message and "train.parquet" in message


def test_raw_data_that_dvc_does_not_track(history, monkeypatch):
    _raw("loose", "data/raw/loose")
    _parameters(5, "data/raw/loose")
    _commit("loose data")
    loose, _ = _pipeline(monkeypatch)
    _commit("made")
    assert (
        "data/raw/loose is not tracked by DVC and was not restored, but has the same content as in the run"
        in restore(loose)
    )
    _raw("changed", "data/raw/loose")
    output = restore(loose)
    assert "data/raw/loose is not tracked by DVC and cannot be restored" in output
    assert "those that depend on them: data (data/raw/loose)" in output
    assert Path("data/processed", UNICODE).read_text() == "loose\n", "what the stage made of it is in the cache"
    restore(history.first, force=True)
    _commit("first")
    with Repo() as repo:
        repo.gc(workspace=True, force=True)
    assert "data/processed" in _refused(loose)


def test_runs_that_cannot_be_restored(history, monkeypatch):
    assert "--run 0123abc: no such run in sqlite:" in _refused("0123abc")
    tracking.connect()
    client = mlflow.MlflowClient()
    bare = client.create_run("1", run_name="old").info.run_id
    assert "'old' recorded no versions" in _refused(bare)
    shutil.rmtree(".git")
    assert "not a git repository" in _refused(history.first)
    shutil.rmtree(".dvc")
    assert "no DVC repository" in _refused(history.first)


def test_a_running_stage_is_not_disturbed(history):
    with Repo() as repo:
        busy = rwlock(repo.tmp_dir, repo.fs, "dvc repro data", read=[os.path.abspath(RAW)], write=[], hardlink=False)
    before = _workspace()
    with busy, pytest.raises(LockError) as error:
        restore(history.first)
    assert isinstance(outside_cause(error.value), Unavailable) and _workspace() == before
    restore(history.first)
    assert _is_first()


def test_a_checkout_that_fails_leaves_the_files(history, monkeypatch):
    def full(*_, **__):
        raise CheckoutError([RAW], {})

    monkeypatch.setattr(Repo, "checkout", full)
    assert "dvc checkout" in _refused(history.first)
