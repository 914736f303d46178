"""Workspaces: real clones of a real repository."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.errors import InputError, Unavailable
from convrec.workspaces import lock_folder, prepare_workspace
from tests.project import commit, run_in

pytestmark = pytest.mark.slow  # many commands of git and DVC

GRAPH = """
stages:
  make:
    cmd: echo made > out && echo ran >> ../ran
    deps: [params.yaml]
    outs: [out]
"""


@pytest.fixture
def origin(tmp_path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    run_in(folder, "git", "init", "--quiet", "--initial-branch", "main")
    run_in(folder, "git", "config", "user.name", "test")
    run_in(folder, "git", "config", "user.email", "test@localhost")
    run_in(folder, "dvc", "init", "--quiet")
    (folder / "params.yaml").write_text("steps: 1\n")
    commit(folder, "start")
    return folder


def test_a_workspace_is_a_clone_that_follows_its_repository(origin, tmp_path):
    one = prepare_workspace("train", tmp_path / "all", str(origin), "main")
    assert one == tmp_path / "all" / "train" and (one / "params.yaml").read_text() == "steps: 1\n"
    (one / "params.yaml").write_text("steps: 7\n")  # as a flow may do
    (one / "untracked").write_text("kept")
    assert prepare_workspace("train", tmp_path / "all", str(origin), None) == one
    assert (one / "params.yaml").read_text() == "steps: 7\n", "nothing is new: nothing changes"

    (origin / "params.yaml").write_text("steps: 2\n")
    commit(origin, "two")
    prepare_workspace("train", tmp_path / "all", str(origin), "main")
    assert (one / "params.yaml").read_text() == "steps: 2\n" and (one / "untracked").exists()
    assert "steps: 7" in run_in(one, "git", "stash", "show", "--patch").stdout, "what was changed is kept"


def test_a_folder_that_is_no_clone_is_left_alone(origin, tmp_path):
    """It may lie in a repository of somebody's."""
    (origin / "work" / "train").mkdir(parents=True)
    before = run_in(origin, "git", "rev-parse", "HEAD").stdout
    (origin / "params.yaml").write_text("steps: 9\n")
    with pytest.raises(InputError, match="train is not a git clone; remove it"):
        prepare_workspace("train", origin / "work", str(tmp_path / "other"), None)
    assert run_in(origin, "git", "rev-parse", "HEAD").stdout == before
    assert (origin / "params.yaml").read_text() == "steps: 9\n"


def test_a_workspace_follows_the_repository_that_is_named_now(origin, tmp_path):
    folder = prepare_workspace("train", tmp_path / "all", str(origin), None)
    run_in(tmp_path, "git", "clone", "--quiet", str(origin), "moved")
    (tmp_path / "moved" / "params.yaml").write_text("steps: 3\n")
    run_in(
        tmp_path / "moved", "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "-qam", "three"
    )
    prepare_workspace("train", tmp_path / "all", str(tmp_path / "moved"), None)
    assert (folder / "params.yaml").read_text() == "steps: 3\n"
    plain = tmp_path / "plain"
    run_in(tmp_path, "git", "init", "--quiet", "plain")
    run_in(
        plain, "git", "-c", "user.name=test", "-c", "user.email=t@localhost", "commit", "-q", "--allow-empty", "-m", "x"
    )
    with pytest.raises(InputError, match="has no .dvc folder"):
        prepare_workspace("other", tmp_path / "all", str(plain), None)


def test_workspaces_share_what_dvc_has_made(origin, tmp_path):
    (origin / "dvc.yaml").write_text(GRAPH)
    commit(origin, "graph")
    folders = [prepare_workspace(name, tmp_path / "all", str(origin), None) for name in ("one", "two")]
    for folder in folders:
        run_in(folder, "dvc", "repro", "--quiet")
        assert (folder / "out").read_text() == "made\n"
    assert (tmp_path / "all" / "ran").read_text() == "ran\n"


def _hold(folder: Path, held, done) -> None:
    with lock_folder(folder):
        held.set()
        done.wait(60)


def test_one_run_at_a_time_works_in_a_folder(origin, tmp_path):
    folder = prepare_workspace("train", tmp_path / "all", str(origin), None)
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(folder, held, done))
    other.start()
    assert held.wait(60)
    with (
        pytest.raises(Unavailable, match=f"another run is using this folder .process {other.pid}."),
        lock_folder(folder),
    ):
        pass
    other.kill()  # a lock goes with its process, however that ends
    other.join()
    with lock_folder(folder):
        pass


def test_what_cannot_be_is_told(origin, tmp_path):
    for name in ("../x", "", ".hidden", "a/b", "-f"):
        with pytest.raises(InputError, match="workspace"):
            prepare_workspace(name, tmp_path / "all", str(origin), None)
    with pytest.raises(InputError, match="git clone failed .*CONVREC_REPOSITORY"):
        prepare_workspace("train", tmp_path / "all", str(tmp_path / "nowhere"), None)
    with pytest.raises(InputError, match="git clone failed .*nosuch.* not found"):
        prepare_workspace("train", tmp_path / "all", str(origin), "nosuch")
    with pytest.raises(Unavailable, match="git clone failed"):
        prepare_workspace("train", tmp_path / "all", "http://127.0.0.1:9/r.git", None)
    assert not (tmp_path / "all" / "train").exists()
    command = [sys.executable, "-m", "convrec.cli", "workspace", "train"]
    result = run_in(tmp_path, *command, check=False)
    assert result.returncode == 2 and "set CONVREC_WORKSPACES; and --repository, or set CONVREC_REPO" in result.stderr
    options = ["--folder", "all", "--repository", str(origin)]
    output = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert output.stdout == f"{tmp_path}/all/train\n"
