"""Ctrl-C: one line and status 130, whatever a command is doing."""

import os
import signal
import subprocess
import sys

import pytest

from convrec.project.errors import Stopped, exit_status
from convrec.training.stopping import stoppable
from tests.training.test_stopping import _Steps

# Sends itself SIGINT as soon as a module is imported, as Ctrl-C would come while a command loads.
_AT_IMPORT = """
import builtins, os, signal, sys
real = builtins.__import__
def imported(name, *arguments, **options):
    module = real(name, *arguments, **options)
    if name == {module!r}:
        builtins.__import__ = real
        os.kill(os.getpid(), signal.SIGINT)
    return module
builtins.__import__ = imported
sys.argv = ["convrec", *{arguments!r}]
from convrec.cli import main
main()
"""


@pytest.mark.parametrize(
    ("arguments", "module", "name"),
    [
        (["recommend", "x", "--model", "nowhere"], "convrec.pipeline.commands", "convrec"),
        pytest.param(["recommend", "x", "--model", "nowhere"], "torch", "convrec recommend", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_while_a_command_loads_ends_it_in_one_line(arguments, module, name):
    code = _AT_IMPORT.format(module=module, arguments=arguments)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", f"{name}: interrupted\n")


def test_what_a_library_makes_of_ctrl_c_is_told_as_such(monkeypatch, cli):
    def convert(_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ImportError("a module that was interrupted") from None

    monkeypatch.setattr("os._exit", sys.exit)
    monkeypatch.setattr("convrec.evaluation.table.print_results", convert)
    assert cli("results") == (130, "", "convrec results: interrupted\n")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_training_that_stops_at_a_checkpoint_ends_with_its_signal_s_status(number, status):
    trainer = _Steps()
    with pytest.raises(Stopped) as stopped, stoppable(trainer):
        signal.raise_signal(number)
        assert trainer.step().should_save
    assert exit_status(stopped.value) == status


@pytest.mark.slow
def test_a_flow_ends_in_one_line_while_it_is_imported():
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "flows.train", "--help"],
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "httpx" in line:  # amid what Prefect imports
            os.kill(process.pid, signal.SIGINT)
            break
    rest = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.wait(60) == 130 and rest == ["interrupted\n"]
    process.stderr.close()


@pytest.mark.parametrize("argument", ["a\0b", "a\udcff", "\ud800"])
def test_an_argument_that_is_no_text_is_told(argument, cli):
    status, _, output = cli("data", "diff", argument)
    assert status == 2 and output.count("\n") == 1
    assert output.startswith("convrec: argument 3, ") and output.endswith("write it in UTF-8\n")
