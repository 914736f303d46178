from pathlib import Path

import pytest

from convrec.project.config import profiles
from convrec.project.config.params import load_params
from convrec.project.errors import InputError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with the real profiles and no params.yaml."""
    (tmp_path / "profiles").symlink_to(Path("profiles").resolve())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_committed_parameters_are_the_embedded_profile(project):
    committed = Path(__file__).parents[3] / "params.yaml"
    profiles.apply_profile("embedded", [])
    assert (project / "params.yaml").read_text() == committed.read_text()


def test_applying_keeps_the_previous_parameters(project):
    profiles.apply_profile("embedded", [])
    (project / "params.yaml").write_text((project / "params.yaml").read_text() + "# mine\n")
    profiles.apply_profile("redial", ["data.path=../redial", "rank_grpo.max_steps=3"])
    params = load_params(project / "params.yaml")
    assert (params.data.source, params.data.path, params.rank_grpo.max_steps) == ("redial", "../redial", 3)
    assert (project / "params.previous.yaml").read_text().endswith("# mine\n")


def test_applying_again_changes_nothing(project):
    profiles.apply_profile("embedded", [])
    assert "already" in profiles.apply_profile("embedded", [])
    assert not (project / "params.previous.yaml").exists()


def test_a_profile_that_is_not_there_is_told(tmp_path):
    with pytest.raises(InputError, match="no profile 'nosuch'; there are amazon, embedded, "):
        profiles.compose("nosuch", [])
    with pytest.raises(InputError, match="run the command in the project folder"):
        profiles.compose("embedded", [], tmp_path / "profiles")


def test_a_change_is_undone_unless_somebody_has_edited_the_file_since(project):
    profiles.apply_profile("embedded", [])
    before = (project / "params.yaml").read_text()
    assert profiles.change_params(["common.seed=17"]) is None and not profiles.undo_change(None), "the value it has"
    changed = profiles.change_params(["common.seed=3"])
    assert load_params().common.seed == 3 and profiles.undo_change(changed)
    assert (project / "params.yaml").read_text() == before
    changed = profiles.change_params(["common.seed=3"])
    edited = changed + "# mine\n"
    (project / "params.yaml").write_text(edited)
    assert not profiles.undo_change(changed) and (project / "params.yaml").read_text() == edited


def test_fields_of_a_section_that_is_null_are_given_one_by_one(project):
    profiles.apply_profile("embedded", ["data.interactions.columns.user=who", "data.interactions.columns.time=when"])
    columns = load_params().data.interactions.columns
    assert (columns.user, columns.item, columns.time, columns.genres) == ("who", None, "when", "genres")


@pytest.mark.parametrize("setting", ["data.pth=x", "data.path", "common.seed=many"])
def test_bad_settings_change_nothing(project, setting):
    with pytest.raises(InputError, match="^profile embedded: common.seed|^--set data"):
        profiles.apply_profile("embedded", [setting])
    assert not (project / "params.yaml").exists()
