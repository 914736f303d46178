"""One stage by `dvc repro`, beside other processes of DVC."""

import json
import logging
import os
import subprocess
import sys

import psutil
import pytest
from dvc.repo import Repo
from dvc.rwlock import rwlock

from tasks import reproduce
from tests.project import run_in


def test_a_stage_whose_files_another_dvc_process_writes_ends_with_status_75(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_in(tmp_path, "git", "init", "--quiet")
    run_in(tmp_path, "dvc", "init", "--quiet")
    (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: echo made > out, outs: [out]}}")
    monkeypatch.setattr(sys, "argv", ["reproduce", "make"])
    monkeypatch.setattr(logging.getLogger("dvc"), "level", logging.NOTSET)
    with (
        Repo() as repo,
        rwlock(repo.tmp_dir, repo.fs, "dvc repro make", read=[], write=[os.path.abspath("out")], hardlink=False),
    ):
        assert reproduce.main() == 75
    output = capsys.readouterr().err
    assert (
        "is using this folder" in output
        and f"(PID {os.getpid()}): dvc repro make" in output
        and output.count("\n") == 1
    )
    assert reproduce.main() == 0 and (tmp_path / "out").read_text() == "made\n"


@pytest.mark.parametrize("holder", ["ended", "another"])
def test_a_holder_that_was_killed_is_forgotten(tmp_path, monkeypatch, holder):
    """Also where another process has its id by now: this one, which started after the list was last changed."""
    monkeypatch.chdir(tmp_path)
    run_in(tmp_path, "git", "init", "--quiet")
    run_in(tmp_path, "dvc", "init", "--quiet")
    (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: echo made > out, outs: [out]}}")
    ended = subprocess.Popen(["true"])
    ended.wait()
    info = {"pid": ended.pid if holder == "ended" else os.getpid(), "cmd": "dvc repro make"}
    holders = tmp_path / ".dvc" / "tmp" / "rwlock"
    out, other = (str(tmp_path / name) for name in ("out", "other"))
    holders.write_text(json.dumps({"write": {out: info}, "read": {other: [info]}}))
    before = psutil.Process().create_time() - 1
    os.utime(holders, (before, before))
    monkeypatch.setattr(sys, "argv", ["reproduce", "make"])
    monkeypatch.setattr(logging.getLogger("dvc"), "level", logging.NOTSET)
    assert reproduce.main() == 0
    assert not any(json.loads(holders.read_text()).values())
