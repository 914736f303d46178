"""The clones in which deployments work: the pull step of prefect.yaml, run by Prefect on a real repository."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
import yaml
from prefect.deployments.steps import run_shell_script

from tests.small_project import ROOT, commit, make_repository, run_in

DEPLOYMENTS = {found["name"]: found for found in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]}
GRAPH = """
stages:
  make:
    cmd: echo made > out && echo ran >> ../ran
    deps: [params.yaml]
    outs: [out]
"""


@pytest.fixture
def origin(here, monkeypatch) -> Path:
    folder = here / "origin"
    folder.mkdir()
    run_in(make_repository(folder), "dvc", "init", "--quiet")
    (folder / "params.yaml").write_text("steps: 1\n")
    (folder / "dvc.yaml").write_text(GRAPH)
    commit(folder, "start")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CONVREC_REPOSITORY", str(folder))
    monkeypatch.setenv("CONVREC_WORKSPACES", str(here / "all"))
    return folder


def _pull(deployment: str) -> Path:
    """Run the first of a deployment's pull steps, and return the folder that it prints for the second."""
    first, second = (dict(*step.values()) for step in DEPLOYMENTS[deployment]["pull"])
    assert second["directory"] == f"{{{{ {first.pop('id')}.stdout }}}}"
    return Path(asyncio.run(run_shell_script(**first))["stdout"])


def test_a_clone_follows_its_repository(origin, tmp_path):
    one = _pull("weekly")
    assert one == tmp_path / "all" / "train" and (one / "params.yaml").read_text() == "steps: 1\n"
    (one / "params.yaml").write_text("steps: 7\n")  # as a flow may do
    (one / "untracked").write_text("kept")
    assert _pull("weekly") == one
    assert (one / "params.yaml").read_text() == "steps: 7\n", "without a new commit nothing changes"

    (origin / "params.yaml").write_text("steps: 2\n")
    commit(origin, "two")
    _pull("weekly")
    assert (one / "params.yaml").read_text() == "steps: 2\n" and (one / "untracked").exists()
    assert "steps: 7" in run_in(one, "git", "stash", "show", "--patch").stdout, "the changes are kept"


def test_clones_share_dvc_s_cache(origin, tmp_path):
    for folder in (_pull("weekly"), _pull("daily")):
        run_in(folder, "dvc", "repro", "--quiet")
        assert (folder / "out").read_text() == "made\n"
    assert (tmp_path / "all" / "ran").read_text() == "ran\n"


def test_each_deployment_has_its_own_clone():
    names = {step["env"]["NAME"] for found in DEPLOYMENTS.values() for step in found["pull"][0].values()}
    assert len(names) == len(DEPLOYMENTS) == 4


@pytest.mark.parametrize("name", ["CONVREC_REPOSITORY", "CONVREC_WORKSPACES"])
def test_a_missing_variable_is_named(origin, monkeypatch, name):
    monkeypatch.delenv(name)
    with pytest.raises(RuntimeError, match=f"{name}: set it for the worker"):
        _pull("weekly")
