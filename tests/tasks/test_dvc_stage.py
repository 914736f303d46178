"""One stage by `dvc repro`: which stages a flow runs, how they fail, and other processes of DVC."""

import errno
import io
import json
import os

import dvc.progress
import dvc_data.callbacks
import psutil
import pytest
from dvc.repo import Repo
from dvc.rwlock import rwlock
from prefect.logging import disable_run_logger

from convrec.project.errors import InputError, NoSpace, Unavailable
from tasks.command import StageFailed
from tasks.dvc_stage import choose_stages, needs_run, reproduce, run_stage, stages
from tests.small_project import make_project, run_in, set_params


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that has run nothing, entered."""
    monkeypatch.chdir(make_project(tmp_path / "project"))
    return tmp_path / "project"


@pytest.mark.parametrize("text", ["{", "stages: 3", "stages: {data: {outs: [3]}}"])
def test_a_damaged_lock_is_told_in_one_line(project, text):
    (project / "dvc.lock").write_text(text)
    with pytest.raises(InputError, match=r"dvc.lock.*; correct the file") as error:
        stages()
    assert "\n" not in str(error.value)


def test_stages_are_chosen_by_name_and_keep_their_order():
    assert [stage.name for stage in choose_stages(["sft", "data"], None)] == ["data", "sft"]
    assert choose_stages(None, ["data"]) == stages()
    assert all(stage.timeout_hours for stage in stages())


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("sh -c 'echo no such folder >> $CONVREC_LOG; exit 2'", 2, "^data ended with status 2: no such folder"),
        ("kill -9 $$", 137, "status 137"),
    ],
)
def test_a_failed_stage_is_told_by_the_status_of_its_command(project, script, status, message):
    graph = project / "dvc.yaml"
    graph.write_text(graph.read_text().replace("cmd: exec convrec run data\n", f"cmd: {script}\n"))
    (stage,) = choose_stages(["data"], None)
    with disable_run_logger(), pytest.raises(StageFailed, match=message) as error:
        run_stage.fn(stage, False, "run")
    assert error.value.status == status


def test_a_stage_whose_input_is_missing_is_bad_input(project):
    set_params(project, {"data": {"source": "redial", "path": "no/such"}})
    for stage, missing in zip(choose_stages(["data", "sft"], None), ("no/such", "data/demonstrations"), strict=True):
        with disable_run_logger(), pytest.raises(InputError, match=f"{missing}: no such file or folder"):
            run_stage.fn(stage, False, "run")


@pytest.fixture
def folder(here):
    """A DVC repository with one stage, entered."""
    run_in(here, "git", "init", "--quiet")
    run_in(here, "dvc", "init", "--quiet")
    (here / "dvc.yaml").write_text("stages: {make: {cmd: echo made > out, outs: [out]}}")
    return here


def test_a_stage_whose_files_another_dvc_process_writes_is_retried_later(folder):
    with (
        Repo() as repo,
        rwlock(repo.tmp_dir, repo.fs, "dvc repro make", read=[], write=[os.path.abspath("out")], hardlink=False),
        pytest.raises(Unavailable, match="is using this folder") as error,
    ):
        reproduce("make")
    assert f"(PID {os.getpid()}): dvc repro make" in str(error.value)
    assert reproduce("make") == 0 and (folder / "out").read_text() == "made\n"


def test_dvc_draws_no_progress_bars_into_the_live_line_of_a_terminal(folder):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    assert needs_run("make")
    for bar in (dvc.progress.Tqdm, dvc_data.callbacks.Tqdm):
        assert bar(total=1, file=terminal).disable


def test_a_holder_of_an_earlier_container_is_forgotten(folder):
    """Another process has its id by now: this one."""
    info = {"pid": os.getpid(), "cmd": "dvc repro make"}
    holders = folder / ".dvc" / "tmp" / "rwlock"
    holders.write_text(json.dumps({"write": {str(folder / "out"): info}, "read": {}}))
    with pytest.raises(Unavailable, match="is using this folder"):
        reproduce("make")
    before = psutil.Process(1).create_time() - 1
    os.utime(holders, (before, before))
    assert reproduce("make") == 0


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"read": 3}', b'{"write": {"out": 3}}', b"\xff"])
@pytest.mark.parametrize("use", [reproduce, needs_run])
def test_a_damaged_list_of_holders_is_told(folder, content, use):
    (folder / ".dvc" / "tmp" / "rwlock").write_bytes(content)
    with pytest.raises(InputError, match="^.dvc/tmp/rwlock: damaged; remove it while no DVC process works here$"):
        use("make")


def test_a_full_disk_leaves_dvc_lock_as_it_was(folder, monkeypatch, caplog):
    assert reproduce("make") == 0
    before = (folder / "dvc.lock").read_bytes()

    def cut(_data: object, stream) -> None:
        stream.write("schema: '2.0'\nstages:\n  ma")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("dvc.utils.serialize._yaml._dump", cut)
        with pytest.raises(NoSpace, match="make: dvc repro: the disk is full"):
            reproduce("make", force=True)
    assert (folder / "dvc.lock").read_bytes() == before and not list(folder.glob(".*.before"))
    assert "dvc.lock: restored as it was before the error" in caplog.messages
    assert [stage.name for stage in stages()] == ["make"] and reproduce("make") == 0
