"""The command line as a whole: its help, and what it says of a mistake."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.cli import _parser
from convrec.commands.stage import STAGES
from tests.project import make_project


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("sft", "data/demonstrations, models/base"), ("demonstrations", "data/processed")],
)
def test_a_stage_whose_inputs_are_not_made_says_what_makes_them(tmp_path, monkeypatch, cli, stage, missing):
    monkeypatch.chdir(make_project(tmp_path / "project"))
    output = (
        f"convrec {stage}: {missing}: not made yet; run `dvc repro {stage}`, which first makes what the stage reads"
    )
    assert cli(stage) == (2, "", f"{output}\n")
    assert not Path("mlruns").exists()


def test_the_command_line_explains_itself():
    result = subprocess.run([sys.executable, "-m", "convrec.cli", "--help"], capture_output=True, text=True, check=True)
    assert all(stage in result.stdout for stage in STAGES)


def test_every_command_is_in_one_group_of_the_help(cli):
    listed = re.findall(r"^  ([a-z][a-z_-]+) {2,}", cli("--help").out, re.MULTILINE)
    commands = next(iter(_parser()._subparsers._group_actions)).choices
    assert sorted(listed) == sorted(commands)


def test_convrec_alone_says_where_to_begin(cli):
    assert "python -m flows.train" in cli().out


def test_a_mistyped_command_is_answered_with_the_nearest(cli):
    output = "convrec: 'recomend' is unknown; did you mean 'recommend'; `convrec --help` lists the choices\n"
    assert cli("recomend") == (2, "", output)
