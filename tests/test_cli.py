"""The command line as a whole: its help, what it says of a mistake and of Ctrl-C; and the names of `import convrec`."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import convrec
from convrec.cli import load_commands
from convrec.pipeline.commands.stage import STAGES
from tests.small_project import make_project


@pytest.mark.parametrize(
    ("stage", "missing"),
    [
        ("sft", "data/demonstrations, data/processed, models/base"),
        ("demonstrations", "data/processed, models/evidence"),
    ],
)
def test_a_stage_whose_inputs_are_not_made_says_what_makes_them(tmp_path, monkeypatch, cli, stage, missing):
    monkeypatch.chdir(make_project(tmp_path / "project"))
    output = (
        f"convrec run {stage}: {missing}: not made yet; run `dvc repro {stage}`, which first makes what the stage reads"
    )
    assert cli("run", stage) == (2, "", f"{output}\n")
    assert not Path("mlruns").exists()


def test_every_public_name_is_there():
    for name in convrec.__all__:
        assert getattr(convrec, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        convrec.Nothing  # noqa: B018


HEAVY = "datasets", "mlflow", "numpy", "pandas", "polars", "torch", "transformers"


@pytest.mark.parametrize("command", [["--help"], ["run", "--help"], ["recommend", "--help"]])
def test_a_help_text_imports_no_library_that_takes_long(command):
    code = f"import sys; from convrec.cli import main; main({command}); print(*set(sys.modules) & set({HEAVY}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *shown, imported = result.stdout.split("\n")[:-1]
    assert imported == "" and (command[0] != "run" or all(stage in result.stdout for stage in STAGES))


@pytest.mark.parametrize(("command", "status"), [("--help", 1), ("--print-completion bash", 141), ("long", 141)])
def test_a_reader_that_leaves_early_gets_no_traceback(command, status):
    """`convrec ... | head -1`: the pipe has no reader any more when the output is written."""
    code = "import sys; from convrec.cli import load_commands, main; "
    code += "load_commands().command(lambda: print('x' * 1_000_000), name='long')"  # more than a pipe's buffer
    reader, writer = os.pipe()
    os.close(reader)
    arguments = [sys.executable, "-c", f"{code}; main(sys.argv[1:])", *command.split()]
    result = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (status, "")


def test_convrec_alone_says_where_to_begin(cli):
    assert "python -m flows.train" in cli().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recomend"], 'convrec: Unknown command "recomend". Did you mean "recommend"?'),
        (["sft"], 'convrec: Unknown command "sft". Did you mean "run"?'),
        (["run", "stf"], 'convrec run: Unknown command "stf". Did you mean "sft"?'),
        (["results", "--publishd"], "convrec results: Unknown option: --publishd. Did you mean --published?"),
        (
            ["recommend", "--modle", "demo", "Heat"],
            'convrec recommend: Invalid value "--modle" for CONVERSATION. Unknown option. Did you mean --model?',
        ),
        (["score"], 'convrec score: Command "score" parameter --predictions requires an argument.'),
        (["score", "--predictions", "x", "--protocol", "y"], 'Choose from: "evaluation", "reward".'),
        (["data"], "convrec data: a subcommand is missing;"),
        (["monitor", "--until", "2022-04-04T12:00+02:00"], "for --until. Give the time in UTC, without an offset."),
        (["feedback", "prune", "--days=-5"], 'Invalid value "-5" for --days. Must be >= 1.'),
        (["serve", "--max-seconds", "1_000"], 'for --max-seconds: unable to convert "1_000" into int.'),
        (["compare", "--algorithms", "grpo", "--steps", "0x10"], 'for --steps: unable to convert "0x10" into int'),
    ],
)
def test_a_mistyped_command_or_option_is_answered_in_one_line(cli, arguments, message):
    status, _, error = cli(*arguments)
    assert status == 2 and message in error and error.count("\n") == 1
    assert error.endswith("--help` lists the choices\n")


def _leaves(app):
    """Yield the commands below an application that do something themselves."""
    for name in app:
        if not name.startswith("-"):
            yield from [app[name]] if app[name].default_command else _leaves(app[name])


def test_every_example_can_be_parsed():
    app = load_commands()
    commands = [command for command in _leaves(app) if "Example: " in command.help]
    assert len(commands) > 20
    for command in commands:
        example = shlex.split(re.search(r"^ *Example: convrec (.*)$", command.help, re.MULTILINE)[1])
        assert app.parse_args(example)[0] is command.default_command


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_commands_and_their_options(cli, shell):
    script = cli("--print-completion", shell).out
    assert "vllm-server" in script and "--save-conversations" in script


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
sys.argv = ["convrec", "recommend", "x", "--model", "nowhere"]
from convrec.cli import main
main()
"""


@pytest.mark.parametrize(("module", "name"), [("convrec.pipeline.commands", "convrec"), ("torch", "convrec recommend")])
def test_ctrl_c_while_a_command_loads_ends_it_in_one_line(module, name):
    code = _AT_IMPORT.format(module=module)
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
