"""A project from an installed package; tests/stack/test_wheel.py builds a real wheel and runs one."""

import pytest
import yaml

from convrec import __version__
from convrec.pipeline import new_project
from convrec.project.errors import InputError
from tests.small_project import ROOT


@pytest.fixture
def template(tmp_path, monkeypatch):
    """An installed package's files, and an empty folder that is entered."""
    folder = tmp_path / "template"
    (folder / "profiles").mkdir(parents=True)
    for name in ("dvc.yaml", "profiles/embedded.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    monkeypatch.setattr(new_project, "TEMPLATE", folder)
    return folder


def test_in_the_graph_the_version_stands_for_the_code(template, tmp_path):
    assert new_project.write_project() == "a new project: dvc.yaml, profiles, requirements.txt"
    stages = yaml.safe_load((tmp_path / "new" / "dvc.yaml").read_text())["stages"]
    for name, stage in stages.items():
        assert stage["deps"].count("requirements.txt") == 1 and not [d for d in stage["deps"] if d[:4] == "src/"], name
    assert (tmp_path / "new" / "requirements.txt").read_text() == f"convrec=={__version__}\n"
    assert (tmp_path / "new" / ".dvc" / "config").exists() and (tmp_path / "new" / ".git").exists()
    assert new_project.write_project() is None, "there is one"


def test_nothing_is_overwritten_and_a_dry_run_or_a_checkout_writes_none(template, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="--dry-run: .* has no project yet"):
        new_project.write_project(dry_run=True)
    (tmp_path / "new" / "requirements.txt").write_text("mine")
    with pytest.raises(InputError, match=r"requirements\.txt would be overwritten"):
        new_project.write_project()
    monkeypatch.setattr(new_project, "TEMPLATE", tmp_path / "none")
    with pytest.raises(InputError, match="no project"):
        new_project.write_project()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["requirements.txt"]
