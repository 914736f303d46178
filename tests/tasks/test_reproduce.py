"""One stage by `dvc repro`, beside other processes of DVC."""

import logging
import os
import sys

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
    told = capsys.readouterr().err
    assert "works in this folder" in told and f"(PID {os.getpid()}): dvc repro make" in told and told.count("\n") == 1
    assert reproduce.main() == 0 and (tmp_path / "out").read_text() == "made\n"
