"""The command line as a whole: its help, and what it says of a mistake."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.cli import _parser
from convrec.pipeline.commands.stage import STAGES
from tests.small_project import make_project


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("sft", "data/demonstrations, models/base"), ("demonstrations", "data/processed")],
)
def test_a_stage_whose_inputs_are_not_made_says_what_makes_them(tmp_path, monkeypatch, cli, stage, missing):
    monkeypatch.chdir(make_project(tmp_path / "project"))
    output = (
        f"convrec run {stage}: {missing}: not made yet; run `dvc repro {stage}`, which first makes what the stage reads"
    )
    assert cli("run", stage) == (2, "", f"{output}\n")
    assert not Path("mlruns").exists()


def test_the_help_of_run_lists_the_stages():
    command = [sys.executable, "-m", "convrec.cli", "run", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(stage in result.stdout for stage in STAGES)


def test_every_command_is_in_one_group_of_the_help(cli):
    listed = re.findall(r"^  ([a-z][a-z_-]+) {2,}", cli("--help").out, re.MULTILINE)
    commands = next(iter(_parser()._subparsers._group_actions)).choices
    assert sorted(listed) == sorted(commands)


@pytest.mark.parametrize(
    ("command", "status"), [("--help", 0), ("--print-completion bash", 141), ("convrec_test", 141)]
)
def test_a_reader_that_leaves_early_gets_no_traceback(tmp_path, command, status):
    """`convrec ... | head -1`: the pipe has no reader any more when the output is written."""
    code = "import sys; from convrec import cli"
    if command == "convrec_test":  # a command that prints more than a pipe's buffer
        code += "; cli._parser = type('P', (), {'parse_args': lambda *_: type('O', (), {'command': 'x', 'run': "
        code += "staticmethod(lambda _: print('x' * 1_000_000))})()})"
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-c", f"{code}; cli.main(sys.argv[1:])", *command.split()]
    result = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (status, "")


def test_convrec_alone_says_where_to_begin(cli):
    assert "python -m flows.train" in cli().out


def test_a_mistyped_command_is_answered_with_the_nearest(cli):
    output = "convrec: 'recomend' is unknown; did you mean 'recommend'; `convrec --help` lists the choices\n"
    assert cli("recomend") == (2, "", output)


@pytest.mark.parametrize("stage", ["sft", "base_model"])
def test_a_stage_that_is_given_as_a_command_is_told_how_to_run(cli, stage):
    assert f"'{stage}' is unknown; to run the stage, give `run {stage}`" in cli(stage).err


def _parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _parsers(command)


def test_every_command_has_an_example_that_can_be_parsed():
    commands = list(_parsers(_parser()))[1:]
    assert len(commands) > 20
    for command in commands:
        example = re.match(r"example: (convrec .*?)(?:\.? Exit status|\n|$)", command.epilog)[1]
        assert example.startswith(command.prog)
        _parser().parse_args(shlex.split(example)[1:])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_commands_and_their_options(cli, shell):
    script = cli("--print-completion", shell).out
    assert "ablate-demonstrations" in script and "--save-conversations" in script
