"""What a run records of its data and parameters: real git, DVC and MLflow, and the way back."""

import shutil
import sys
from pathlib import Path

import pytest
from dvc.repo import Repo

from convrec.project.paths import Paths
from convrec.registry import tracking
from convrec.registry.tracking import data_versions
from tests.small_project import commit, run_in

GRAPH = f"""stages:
  data:
    cmd: {sys.executable} -c 'import shutil; shutil.copytree("data/raw", "data/processed")'
    deps: [data/raw]
    outs: [data/processed]
"""
RAW = Path("data/raw/Amélie.txt")


@pytest.fixture
def client(make_store, tmp_path, monkeypatch):
    """The client of a store in a repository with raw data and a stage."""
    monkeypatch.chdir(tmp_path)
    run_in(tmp_path, "git", "init", "--quiet")
    run_in(tmp_path, "git", "config", "user.name", "test")
    run_in(tmp_path, "git", "config", "user.email", "test@localhost")
    Repo.init(".").close()
    Path(".gitignore").write_text("/mlruns/\n/runs/\n")
    Path("dvc.yaml").write_text(GRAPH)
    Path("params.yaml").write_text("seed: 1\n")
    return make_store(tmp_path)


def _month(text: str) -> str:
    """Take in raw data, run the graph as a flow does, and commit; return the run's id."""
    RAW.parent.mkdir(parents=True, exist_ok=True)
    RAW.unlink(missing_ok=True)  # a link to the cache is not written through
    RAW.write_text(text)
    run = tracking.start_pipeline_run("train tiny", {})
    with Repo() as repo:
        repo.add(str(RAW.parent))
        repo.reproduce()
    tracking.end_pipeline_run(run, Paths(), "FINISHED", whole=False)
    commit(Path(), text)
    return run


def test_a_run_records_its_versions_which_bring_its_data_back(client, tmp_path):
    first, second = _month("first"), _month("second")
    run = client.get_run(second)
    assert run.data.tags["mlflow.source.git.commit"] == run_in(tmp_path, "git", "rev-parse", "HEAD~1").stdout.strip()
    folder = Path(client.download_artifacts(second, data_versions.FOLDER, str(tmp_path.parent)))
    recorded = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert recorded == {
        name: Path(name).read_bytes() for name in ("params.yaml", "dvc.yaml", "dvc.lock", "data/raw.dvc")
    }
    assert run.data.tags[data_versions.DIGEST_TAG] == data_versions.digest(recorded)
    assert client.get_run(first).data.tags[data_versions.DIGEST_TAG] != data_versions.digest(recorded)

    run_in(tmp_path, "git", "checkout", "--quiet", "HEAD~1")
    run_in(tmp_path, "dvc", "checkout", "--quiet")
    assert Path("data/processed/Amélie.txt").read_text() == "first" == RAW.read_text()
    assert "up to date" in run_in(tmp_path, "dvc", "status").stdout
    shutil.copytree(folder, ".", dirs_exist_ok=True)  # the second run's, by its record
    run_in(tmp_path, "dvc", "checkout", "--quiet")
    assert Path("data/processed/Amélie.txt").read_text() == "second"


def test_ignored_files_are_no_versions(client):
    for folder, rule in (("by_git", ".gitignore"), ("by_dvc", ".dvcignore")):
        Path(folder).mkdir()
        Path(folder, "x.dvc").write_text("outs: []\n")
        with Path(rule).open("a") as stream:
            stream.write(f"/{folder}\n")
    Path("new folder").mkdir()
    Path("new folder", "é.dvc").write_text("outs: []\n")
    expected = ["params.yaml", "dvc.yaml", "new folder/é.dvc"]
    assert list(data_versions.read_versions()) == expected
    shutil.rmtree("by_git")
    shutil.rmtree("by_dvc")
    shutil.rmtree(".git")
    assert list(data_versions.read_versions()) == expected, "DVC works without git"


def test_a_folder_without_dvc_records_what_there_is(tmp_path):
    assert data_versions.version_tags(data_versions.read_versions(tmp_path)) == {}
    (tmp_path / "x.dvc").write_text("outs: []\n")
    (tmp_path / "dvc.lock").write_text("<<<<<<< no YAML: [")
    assert list(data_versions.version_tags(data_versions.read_versions(tmp_path))) == [data_versions.DIGEST_TAG]
