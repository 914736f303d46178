"""Names of versions: folders, files, and revisions in real repositories of git and DVC."""

import os
import shutil

import pandas as pd
import pytest

from convrec.data.revisions.diff import diff, load_version
from convrec.project.errors import InputError
from tests.small_project import run_in

ITEM = {"item_id": "heat_1995", "title": "Heat", "year": 1995, "aliases": ["Hitze"], "metadata": "{}"}
UP = {**ITEM, "item_id": "up", "title": "Up", "year": None, "aliases": []}
ROW = {
    "conversation_id": "c",
    "prompt_id": "p",
    "date": "",
    "messages": [{"role": "user", "content": "hello"}],
    "groundtruth": [{"title": "Heat", "year": 1995}],
    "seen_titles": [],
}


def _write(folder, items=(ITEM,), rows=(ROW,)):
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(list(items)).astype({"year": "Int64"}).to_parquet(folder / "catalog.parquet")
    pd.DataFrame(list(rows)).to_parquet(folder / "train.parquet")
    (folder / "world.parquet").write_bytes(b"not compared")


def _commit(project, message):
    run_in(project, "git", "add", "-A")
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "-m", message)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A repository whose tags are `empty`, before any data, `v1` and `v2`."""
    project = tmp_path_factory.mktemp("versions") / "project"
    project.mkdir()
    run_in(project, "git", "init", "--quiet")
    run_in(project, "dvc", "init", "--quiet")
    _commit(project, "start")
    run_in(project, "git", "tag", "empty")
    for tag, items in (("v1", [ITEM]), ("v2", [ITEM, UP])):
        _write(project / "data" / "processed", items)
        run_in(project, "dvc", "add", "--quiet", "data/processed")
        _commit(project, tag)
        run_in(project, "git", "tag", tag)
    return project


@pytest.fixture
def project(original, tmp_path, monkeypatch):
    """A copy of the repository, its folder the current one, with DVC's own notes apart."""
    shutil.copytree(original, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    return tmp_path / "project"


@pytest.mark.slow
def test_tags_branches_and_commits_name_the_data_of_that_time(project):
    found = diff("v1", "v2")
    assert found.catalog.added == ["Up"] and found.conversations.is_empty
    assert diff("HEAD~1", "HEAD").catalog == found.catalog
    commit = run_in(project, "git", "rev-parse", "--short", "v1").stdout.strip()
    assert diff("v1", commit).is_empty
    assert set(load_version("v1").splits) == {"train"}

    run_in(project, "dvc", "remote", "add", "--local", "--default", "store", str(project.parent / "store"))
    run_in(project, "dvc", "push", "--quiet", "--all-tags")
    shutil.rmtree(".dvc/cache")
    assert diff("v1", "v2").catalog == found.catalog, "data that only the remote has"
    assert run_in(project, "git", "status", "--short").stdout == ""

    shutil.rmtree("data/processed")
    _write(project / "data" / "processed", [UP], [ROW, ROW])
    found = diff("v2", "workspace")
    assert found.catalog.removed == ["Heat (1995)"] and found.conversations.new == 1
    assert diff("data/processed", "workspace").is_empty


@pytest.mark.slow
def test_an_output_of_the_graph_in_a_subfolder_of_the_repository(tmp_path, monkeypatch):
    folder = tmp_path / "sub"
    _write(folder / "made")
    (folder / "dvc.yaml").write_text(
        "stages:\n  data:\n    cmd: cp -r made data/processed\n    outs: [data/processed]\n"
    )
    (folder / ".gitignore").write_text("/data/processed\n")
    (folder / "data").mkdir()
    run_in(tmp_path, "git", "init", "--quiet")
    run_in(folder, "dvc", "init", "--quiet", "--subdir")
    _commit(tmp_path, "no lock yet")
    run_in(folder, "dvc", "repro", "--quiet")
    _commit(tmp_path, "lock")
    monkeypatch.chdir(folder)
    assert diff("HEAD", "workspace").is_empty
    with pytest.raises(InputError, match="HEAD~1: "):
        load_version("HEAD~1")


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["all", "files"])
def test_data_that_is_nowhere_is_an_error_with_the_remedy(project, lost):
    for path in (project / ".dvc" / "cache" / "files" / "md5").glob("*/*"):
        if lost == "all" or not path.name.endswith(".dir"):
            path.unlink()
    with pytest.raises(InputError, match="v1: DVC cannot read data/processed of this revision") as caught:
        load_version("v1")
    assert "`git checkout v1`, `dvc repro data`" in str(caught.value)


@pytest.mark.slow
def test_a_revision_without_readable_data_is_named(project):
    with pytest.raises(InputError, match="empty: this revision has no data/processed; .*dvc.lock"):
        load_version("empty")
    (project / "data" / "processed" / "catalog.parquet").write_bytes(b"PAR1PAR1")
    run_in(project, "dvc", "add", "--quiet", "data/processed")
    _commit(project, "no Parquet")
    with pytest.raises(InputError, match="^HEAD: catalog.parquet: not a readable Parquet file"):
        load_version("HEAD")
    (project / "dvc.yaml").write_text("stages: [")
    _commit(project, "damaged")
    with pytest.raises(InputError, match="HEAD: DVC cannot read data/processed of this revision"):
        load_version("HEAD")
    for name in ("v3", "no/such/folder", "HEAD~99", "v1:data", "--help", "tag with spaces"):
        with pytest.raises(InputError, match=f"^{name}: no such folder, file or git revision; give a folder such as"):
            load_version(name)


def test_outside_of_git_a_revision_is_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match="HEAD: no such folder, file or git revision"):
        load_version("HEAD")
    with pytest.raises(InputError, match="workspace: no data/processed here; run `dvc repro data`"):
        load_version("workspace")
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InputError, match="HEAD: no such folder, file or git revision"):
        load_version("HEAD")


def test_a_file_is_a_catalog_or_conversations(tmp_path):
    _write(tmp_path)
    shutil.copy(tmp_path / "train.parquet", tmp_path / "mine.parquet")
    assert load_version(str(tmp_path / "catalog.parquet")).catalog.items[0].title == "Heat"
    assert set(load_version(str(tmp_path / "train.parquet")).splits) == {"train"}
    assert set(load_version(str(tmp_path / "mine.parquet")).splits) == {"conversations"}
    path = tmp_path / "films.csv"
    path.write_text("title,year\nHeat,1995\nChess,\n", encoding="utf-8")
    assert load_version(str(path)).catalog.items[1].id == "chess"


def test_wrong_files_are_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pd.DataFrame([{"a": 1, "b": 2}]).to_parquet(path)
    with pytest.raises(InputError, match="no title.; every row needs a title"):
        load_version(str(path))
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="rows.parquet: not a readable Parquet file"):
        load_version(str(path))
    (tmp_path / "films.csv").write_text("film\nHeat\n", encoding="utf-8")
    with pytest.raises(InputError, match="films.csv: column 'title' is missing"):
        load_version(str(tmp_path / "films.csv"))
    with pytest.raises(InputError, match="this folder has none of catalog.parquet, train.parquet"):
        load_version(str(tmp_path))
    pd.DataFrame([ROW]).drop(columns="date").to_parquet(tmp_path / "train.parquet")
    with pytest.raises(InputError, match=f"{tmp_path}: .*train.parquet: column 'date' is missing"):
        load_version(str(tmp_path))
