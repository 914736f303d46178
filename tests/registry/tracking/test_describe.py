import hashlib
import shutil
import sys
from pathlib import Path

from dvc.repo import Repo

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.registry import tracking
from convrec.registry.tracking.describe import DIGEST_TAG, VERSIONS, changed_by_runs, read_versions, version_tags
from tests.small_project import ROOT, commit, make_repository, run_in

GRAPH = f"""stages:
  data:
    cmd: {sys.executable} -c 'import shutil; shutil.copytree("data/raw", "data/processed")'
    deps: [data/raw]
    outs: [data/processed]
"""
RAW = Path("data/raw/Amélie.txt")


def test_what_runs_write_makes_no_work_tree_dirty(here):
    assert tracking.git_state() == {} and changed_by_runs() == []
    files = [here / name for name in ("dvc.lock", "metrics/sft.json", "plots/sft.csv", "params.yaml")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("before")
    make_repository(here)
    commit(here, "start")
    files[0].write_text("after")
    files[1].unlink()
    files[2].write_text("after")
    (here / "untracked").touch()
    assert tracking.git_state()["git_dirty"] == "false"
    assert changed_by_runs() == ["dvc.lock", "metrics/sft.json", "plots/sft.csv"]
    files[3].write_text("after")
    assert tracking.git_state()["git_dirty"] == "true"


def test_the_tags_of_a_run_tell_what_it_was_made_from(tmp_path):
    params, paths = load_params(ROOT / "params.yaml"), Paths(tmp_path)
    assert params.tags() | tracking.data_tags(paths) == {
        "model": "convrec-movies",
        "profile": params.common.profile,
        "algorithm": f"rank_grpo:{params.rank_grpo.returns}",
        "base_model": params.base_model.name,
        "seed": str(params.common.seed),
    }
    paths.processed.mkdir(parents=True)
    for name in ("train", "validation", "test"):
        paths.split(name).write_text(name)
    paths.catalog.write_text("catalog")
    digests = " ".join(hashlib.md5(name.encode()).hexdigest() for name in ("train", "validation", "test"))
    tags = params.tags() | tracking.data_tags(paths)
    assert tags["data_version"] == hashlib.md5(digests.encode()).hexdigest()[:12]
    assert tags["catalog_version"] == hashlib.md5(b"catalog").hexdigest()[:12]
    paths.split("test").write_text("other")
    assert tracking.data_tags(paths)["data_version"] != tags["data_version"]


def _month(text: str) -> str:
    """Take in raw data, run the graph as a flow does, and commit; return the run's id."""
    RAW.parent.mkdir(parents=True, exist_ok=True)
    RAW.unlink(missing_ok=True)  # a link to the cache is not written through
    RAW.write_text(text)
    run = tracking.open_run("train tiny", {})
    with Repo() as repo:
        repo.add(str(RAW.parent))
        repo.reproduce()
    tracking.end_pipeline_run(run, Paths(), "FINISHED", whole=False)
    commit(Path(), text)
    return run.run_id


def test_a_run_records_its_versions_which_bring_its_data_back(make_store, tmp_path, monkeypatch):
    monkeypatch.chdir(make_repository(tmp_path))
    Repo.init(".").close()
    for name, text in ((".gitignore", "/mlruns/\n/runs/\n"), ("dvc.yaml", GRAPH), ("params.yaml", "seed: 1\n")):
        Path(name).write_text(text)
    client = make_store(tmp_path)
    first, second = _month("first"), _month("second")
    run = client.get_run(second)
    assert run.data.tags["mlflow.source.git.commit"] == run_in(tmp_path, "git", "rev-parse", "HEAD~1").stdout.strip()
    folder = Path(client.download_artifacts(second, VERSIONS, str(tmp_path.parent)))
    recorded = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = ("params.yaml", "dvc.yaml", "dvc.lock", "data/raw.dvc")
    assert recorded == {name: Path(name).read_bytes() for name in names}
    tags = version_tags(recorded)
    assert run.data.tags.items() >= tags.items()
    assert client.get_run(first).data.tags[DIGEST_TAG] != tags[DIGEST_TAG]

    run_in(tmp_path, "git", "checkout", "--quiet", "HEAD~1")
    run_in(tmp_path, "dvc", "checkout", "--quiet")
    assert Path("data/processed/Amélie.txt").read_text() == "first" == RAW.read_text()
    assert "up to date" in run_in(tmp_path, "dvc", "status").stdout
    shutil.copytree(folder, ".", dirs_exist_ok=True)  # the second run's, by its record
    run_in(tmp_path, "dvc", "checkout", "--quiet")
    assert Path("data/processed/Amélie.txt").read_text() == "second"


def test_the_versions_are_what_there_is(tmp_path):
    assert version_tags(read_versions(tmp_path)) == {}
    run_in(tmp_path, "git", "init", "--quiet")
    (tmp_path / ".gitignore").write_text("venv/\n")
    for name in ("dvc.lock", "new folder/é.dvc", "a.dvc", "venv/d.dvc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("<<<<<<< no YAML: [")
    (tmp_path / "dangling.dvc").symlink_to("nowhere")
    assert list(read_versions(tmp_path)) == ["dvc.lock", "a.dvc", "new folder/é.dvc"]
