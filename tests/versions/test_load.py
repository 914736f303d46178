"""Names of versions: folders, files, and revisions in real repositories of git and DVC."""

import os
import shutil

import pandas as pd
import pytest

from convrec.errors import InputError
from convrec.versions.diff import diff
from convrec.versions.load import load_version
from tests.project import run_in

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


def _unchanged(project):
    return run_in(project, "git", "status", "--short").stdout == ""


def test_tags_branches_and_commits_name_the_data_of_that_time(project):
    found = diff("v1", "v2")
    assert [item.title for item in found.catalog.added] == ["Up"]
    assert found.catalog.added[0].year is None and found.conversations.is_empty
    assert diff("HEAD~1", "HEAD").to_json()["catalog"] == found.to_json()["catalog"]
    commit = run_in(project, "git", "rev-parse", "--short", "v1").stdout.strip()
    assert diff("v1", commit).is_empty
    assert set(load_version("v1").splits) == {"train"}
    assert _unchanged(project)


def test_workspace_is_what_lies_in_the_folder_now(project):
    shutil.rmtree("data/processed")
    _write(project / "data" / "processed", [UP], [ROW, ROW])
    found = diff("v2", "workspace")
    assert [item.title for item in found.catalog.removed] == ["Heat"] and found.conversations.new == 1
    assert diff("data/processed", "workspace").is_empty


def test_data_that_is_only_in_the_remote_is_fetched_from_there(project):
    run_in(project, "dvc", "remote", "add", "--local", "--default", "store", str(project.parent / "store"))
    run_in(project, "dvc", "push", "--quiet", "--all-tags")
    shutil.rmtree(".dvc/cache")
    assert [item.title for item in diff("v1", "v2").catalog.added] == ["Up"]
    assert _unchanged(project)


def test_a_project_in_a_folder_of_its_repository_has_revisions_too(tmp_path, monkeypatch):
    folder = tmp_path / "sub"
    _write(folder / "data" / "processed")
    run_in(tmp_path, "git", "init", "--quiet")
    run_in(folder, "dvc", "init", "--quiet", "--subdir")
    run_in(folder, "dvc", "add", "--quiet", "data/processed")
    _commit(tmp_path, "start")
    monkeypatch.chdir(folder)
    assert diff("HEAD", "workspace").is_empty


def test_an_out_of_the_graph_is_found_by_the_lock(tmp_path, monkeypatch):
    _write(tmp_path / "made")
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  data:\n    cmd: cp -r made data/processed\n    outs: [data/processed]\n"
    )
    (tmp_path / ".gitignore").write_text("/data/processed\n")
    (tmp_path / "data").mkdir()
    run_in(tmp_path, "git", "init", "--quiet")
    run_in(tmp_path, "dvc", "init", "--quiet")
    _commit(tmp_path, "no lock yet")
    run_in(tmp_path, "dvc", "repro", "--quiet")
    _commit(tmp_path, "lock")
    monkeypatch.chdir(tmp_path)
    assert diff("HEAD", "workspace").is_empty
    with pytest.raises(InputError, match="HEAD~1: "):
        load_version("HEAD~1")


def test_data_that_is_nowhere_is_an_error_that_says_how_to_make_it(project):
    shutil.rmtree(".dvc/cache")
    with pytest.raises(InputError, match="v1: data/processed of this revision is neither in DVC's cache nor") as caught:
        load_version("v1")
    assert "`git checkout v1`, `dvc repro data`" in str(caught.value)


def test_a_single_lost_file_is_an_error_too(project):
    for path in (project / ".dvc" / "cache" / "files" / "md5").glob("*/*"):
        if not path.name.endswith(".dir"):
            path.chmod(0o644)
            path.unlink()
    with pytest.raises(InputError, match="neither in DVC's cache nor in the default remote"):
        load_version("v2")


def test_a_revision_without_data_is_named(project):
    with pytest.raises(InputError, match="empty: this revision has no data/processed; .*dvc.lock"):
        load_version("empty")


def test_a_revision_that_dvc_cannot_read_is_named(project):
    (project / "dvc.yaml").write_text("stages: [")
    _commit(project, "damaged")
    with pytest.raises(InputError, match="HEAD: DVC cannot read the project at this revision"):
        load_version("HEAD")


@pytest.mark.parametrize("name", ["v3", "no/such/folder", "HEAD~99", "v1:data", "--help", "", "tag with spaces"])
def test_a_name_of_nothing_is_an_error_with_what_can_be_given(project, name):
    with pytest.raises(InputError) as caught:
        load_version(name)
    assert str(caught.value).startswith(f"{name}: ")


def test_outside_of_git_a_revision_is_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match="HEAD: no such folder or file, and .*not in a git repository"):
        load_version("HEAD")
    with pytest.raises(InputError, match="workspace: no data/processed here; run `dvc repro data`"):
        load_version("workspace")
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InputError, match="HEAD: no such folder or file, and git cannot be run"):
        load_version("HEAD")


def test_a_folder_without_the_files_is_named(tmp_path):
    with pytest.raises(InputError, match="this folder has none of catalog.parquet, train.parquet"):
        load_version(str(tmp_path))


def test_a_file_is_a_catalog_or_conversations(tmp_path):
    _write(tmp_path)
    shutil.copy(tmp_path / "train.parquet", tmp_path / "mine.parquet")
    assert load_version(str(tmp_path / "catalog.parquet")).catalog["title"].tolist() == ["Heat"]
    assert set(load_version(str(tmp_path / "train.parquet")).splits) == {"train"}
    assert set(load_version(str(tmp_path / "mine.parquet")).splits) == {"conversations"}
    assert diff(str(tmp_path / "mine.parquet"), str(tmp_path / "mine.parquet")).is_empty


def test_a_catalog_in_another_form_is_read_and_made_canonical(tmp_path):
    path = tmp_path / "films.csv"
    path.write_text("title,year\nHeat,1995\nChess,\n", encoding="utf-8")
    assert load_version(str(path)).catalog["item_id"].tolist() == ["heat_1995", "chess"]


def test_wrong_columns_are_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pd.DataFrame([{"a": 1, "b": 2}]).to_parquet(path)
    with pytest.raises(InputError, match=r"found a, b\); it has neither conversations nor a catalog"):
        load_version(str(path))
    pd.DataFrame([ROW]).drop(columns="seen_titles").to_parquet(path)
    with pytest.raises(InputError, match="column 'seen_titles' is missing"):
        load_version(str(path))
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="rows.parquet: not a readable Parquet file"):
        load_version(str(path))
    _write(tmp_path / "folder")
    pd.DataFrame([ROW]).drop(columns="date").to_parquet(tmp_path / "folder" / "train.parquet")
    with pytest.raises(InputError, match="folder: train.parquet: column 'date' is missing"):
        load_version(str(tmp_path / "folder"))
    (tmp_path / "films.csv").write_text("film\nHeat\n", encoding="utf-8")
    with pytest.raises(InputError, match="films.csv: row 1: column 'title' is missing"):
        load_version(str(tmp_path / "films.csv"))
