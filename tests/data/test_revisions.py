"""The difference between two versions of the data, which are folders, files, or revisions of git and DVC."""

import json
import os
import shutil

import pytest

from convrec.data.catalog import Catalog, Item
from convrec.data.revisions import diff, load_version
from convrec.data.schemas import spooled, write_catalog, write_conversations
from convrec.project.errors import InputError
from convrec.project.text import WIDTH
from tests.rows import make_row
from tests.small_project import run_in

HEAT, UP = Item("Heat", 1995, {"plot": "x"}, ("Hitze",)), Item("Up", 2009)


def _talk(text, truths=(("Heat", 1995),), seen=(), date="2024-01-05"):
    return make_row("any", truths, text, date=date, seen_titles=list(seen))


def _write(folder, items=(HEAT,), **splits):
    folder.mkdir(parents=True, exist_ok=True)
    write_catalog(Catalog(items), folder / "catalog.parquet")
    for name, rows in (splits or {"train": [_talk("a")]}).items():
        write_conversations(spooled(rows), folder / f"{name}.parquet")
    (folder / "world.parquet").write_bytes(b"not compared")


def test_items_and_rows_that_differ(here):
    _write(
        here / "old",
        [HEAT, Item("Zodiac", 2007), Item("Matrix, The", 1999, own_id="7")],
        train=[_talk("a"), _talk("gone")],
        validation=[_talk("v", date="2024-01-06")],
        test=[_talk("b"), _talk("b"), _talk("c"), _talk("d"), _talk("e")],
    )
    _write(
        here / "new",
        [Item("Heat", 1995, {"plot": "", "cast": "Pacino"}, ("Calor",)), Item("The Matrix", 1999, own_id="7"), UP],
        train=[_talk("a"), _talk("v", date="2024-01-06")],
        validation=[_talk("b"), _talk("b")],
        test=[_talk("c", date=""), _talk("d", seen=["Up"]), _talk("e", [("Heat", None)])],
    )
    found = diff("old", "new")
    assert json.loads(json.dumps(found.to_json())) == {
        "old": "old",
        "new": "new",
        "catalog": {
            "before": 3,
            "after": 3,
            "added": ["Up (2009)"],
            "removed": ["Zodiac (2007)"],
            "changed": [
                'Matrix, The (1999): title "Matrix, The (1999)" -> "The Matrix (1999)"',
                'Heat (1995): plot "x" -> ""; aliases "Hitze" -> "Calor"; cast "" -> "Pacino"',
            ],
        },
        "conversations": {
            "new": 3,
            "gone": 4,
            "moved": 3,
            "splits": {
                "train": {"before": 2, "after": 2, "added": 1, "removed": 1},
                "validation": {"before": 1, "after": 2, "added": 2, "removed": 1},
                "test": {"before": 5, "after": 3, "added": 3, "removed": 5},
            },
        },
    }
    assert found.to_text(limit=1) == "\n".join(
        [
            "old -> new",
            "Catalog: 3 -> 3 items: 1 added, 1 removed, 2 changed",
            "  added",
            "    Up (2009)",
            "  removed",
            "    Zodiac (2007)",
            "  changed",
            '    Matrix, The (1999): title "Matrix, The (1999)" -> "The Matrix (1999)"',
            "    ... and 1 more",
            "Conversations: 3 new, 4 gone, 3 in another split",
            "  train      2 -> 2 rows: 1 added, 1 removed",
            "  validation 1 -> 2 rows: 2 added, 1 removed",
            "  test       5 -> 3 rows: 3 added, 5 removed",
        ]
    )
    assert diff("old", "old").is_empty and diff("old", "old").to_text().startswith("old -> old: no change\n")


def test_a_catalog_file_is_a_version_and_its_texts_are_safe(tmp_path):
    _write(tmp_path / "old")
    path = tmp_path / "films.csv"
    titles = f"title,year\n{'千と千尋の神隠し' * 20},2001\nSly\x1b[31m\u202egnis,2002\nChess,\n"
    path.write_text(titles, encoding="utf-8")
    assert load_version(str(path)).catalog.items[2].id == "chess"
    text = diff(str(tmp_path / "old"), str(path)).to_text()
    assert max(len(line) + sum(ord(c) > 0x2E80 for c in line) for line in text.split("\n")) <= WIDTH
    assert not {"\x1b", "\u202e"} & set(text) and text.endswith("not compared, because a version has none")


def _commit(project, message):
    run_in(project, "git", "add", "-A")
    run_in(project, "git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "-m", message)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A subfolder of a repository whose tags are `empty`, before any data, `v1` and `v2`."""
    monkeypatch.setenv("DVC_SITE_CACHE_DIR", str(tmp_path / "site"))
    project = tmp_path / "repository" / "project"
    project.mkdir(parents=True)
    run_in(project.parent, "git", "init", "--quiet")
    run_in(project, "dvc", "init", "--quiet", "--subdir")
    _commit(project, "start")
    run_in(project, "git", "tag", "empty")
    for tag, items in (("v1", [HEAT]), ("v2", [HEAT, UP])):
        _write(project / "data" / "processed", items)
        run_in(project, "dvc", "add", "--quiet", "data/processed")
        _commit(project, tag)
        run_in(project, "git", "tag", tag)
    monkeypatch.chdir(project)
    return project


@pytest.mark.slow
def test_tags_branches_and_commits_name_the_data_of_that_time(project):
    found = diff("v1", "v2")
    assert found.catalog["added"] == ["Up (2009)"] and found.conversations["new"] == 0
    commit = run_in(project, "git", "rev-parse", "--short", "v1").stdout.strip()
    assert diff("HEAD~1", commit).is_empty
    assert set(load_version("v1").splits) == {"train"}
    run_in(project, "dvc", "remote", "add", "--local", "--default", "store", str(project.parent / "store"))
    run_in(project, "dvc", "push", "--quiet", "--all-tags")
    shutil.rmtree(".dvc/cache")
    assert diff("v1", "v2").catalog == found.catalog, "data that only the remote has"
    assert run_in(project, "git", "status", "--short", ".").stdout == ""
    assert diff("data/processed", "workspace").is_empty


@pytest.mark.slow
def test_a_revision_without_readable_data_is_named(project):
    with pytest.raises(InputError, match=r"empty: DVC cannot read project/data/processed of this .*`git checkout em"):
        load_version("empty")
    (project / "data" / "processed" / "catalog.parquet").write_bytes(b"PAR1PAR1")
    run_in(project, "dvc", "add", "--quiet", "data/processed")
    _commit(project, "no Parquet")
    with pytest.raises(InputError, match="^HEAD: .*catalog.parquet: not a readable Parquet file"):
        load_version("HEAD")
    (project / "dvc.yaml").write_text("stages: [")
    _commit(project, "damaged")
    with pytest.raises(InputError, match="HEAD: DVC cannot read project/data/processed"):
        load_version("HEAD")
    for path in (project / ".dvc" / "cache" / "files" / "md5").glob("*/*"):
        path.unlink()
    with pytest.raises(InputError, match="v1: DVC cannot read .*`dvc push`"):
        load_version("v1")


def test_names_of_nothing_are_errors(here, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(here.parent))
    for name in ("HEAD", "--help", "no/such/folder"):
        with pytest.raises(InputError, match=f"^{name}: no such folder, file or git revision; give a folder such as"):
            load_version(name)
    with pytest.raises(InputError, match="workspace: no data/processed here; run `dvc repro data`"):
        load_version("workspace")
    with pytest.raises(InputError, match="catalog.parquet: no such catalog file"):
        load_version(str(here))
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InputError, match="HEAD: no such folder, file or git revision"):
        load_version("HEAD")
