"""The command line `convrec COMMAND`; the commands are in `pipeline/commands/`."""

import argparse
import difflib
import logging
import multiprocessing
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, NoReturn

from convrec import __version__
from convrec.project.errors import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    EXIT_PIPE,
    InputError,
    causes,
    exit_status,
    leave,
    outside_cause,
)
from convrec.project.machine import keep_freed_memory, limit_threads
from convrec.project.paths import Paths
from convrec.project.stage_record import recorded
from convrec.project.text import is_clean
from convrec.training.launch import LOG


def _set_up() -> None:
    """Set logging, threads and memory: the only place where global state is set. Seeds are passed on."""
    limit_threads()
    keep_freed_memory()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("convrec").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # otherwise logs every retry of a server that is down
    for name, value in {
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",  # commands log their own progress
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }.items():
        os.environ.setdefault(name, value)


_GROUPS = {
    "Ask a model": ("recommend", "chat", "app", "serve", "vllm-server"),
    "Run and change the pipeline": ("preflight", "run", "profile", "reproduce", "data", "fetch-model"),
    "Measure and compare": ("results", "evaluate", "score", "compare", "ablate-demonstrations"),
    "Watch the service": ("monitor",),
    "A language model's answers": ("parse", "remap"),
    "Registry and tracking": ("promote", "rollback", "registry", "experiment", "feedback", "tracking"),
}
_BEGIN = """\
convrec trains, tests and serves small language models that recommend from conversations.

Begin with:
  python -m flows.train                 run the whole pipeline with params.yaml, register and promote
  convrec recommend "I loved Heat"      ask the champion
  convrec profile --help                choose other data, another model, a GPU

`convrec --help` lists every command, `convrec COMMAND --help` its options.
"""
_INVALID = re.compile(r"argument .*: invalid choice: '(.*?)' \(choose from (.*)\)", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        if match := _INVALID.fullmatch(message):
            from convrec.pipeline.commands.stage import STAGES  # noqa: PLC0415  (as the commands)

            choices = [name.strip(" '") for name in match[2].split(",")]
            near = difflib.get_close_matches(match[1], choices, n=1)
            hint = f"did you mean '{near[0]}'" if near else f"give one of {', '.join(choices)}"
            if match[1] in STAGES and "run" in choices:
                hint = f"to run the stage, give `run {match[1]}`"
            message = f"'{match[1]}' is unknown; {hint}"
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}; `{self.prog} --help` lists the choices\n")


class _Completion(argparse.Action):
    """Prints the shell's script for the completion of commands and options."""

    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: Any, shell: Any, _option: str | None = None
    ) -> None:
        import shtab  # noqa: PLC0415

        for action in parser._actions:
            if action.dest == "command":
                action.help = ""  # shtab leaves out what is hidden in the help
        print(shtab.complete(parser, shell))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    # Imported inside `main`, which handles Ctrl-C: the import takes half a second.
    from convrec.pipeline.commands import (  # noqa: PLC0415
        data,
        evaluate,
        experiments,
        feedback,
        monitoring,
        online,
        preflight,
        recommender,
        registry,
        responses,
        serving,
        stage,
        tracking,
    )

    parser = _Parser(
        prog="convrec",
        usage="convrec COMMAND ...",
        description="Train, test and serve small language models that recommend from conversations.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"convrec {__version__}")
    parser.add_argument(
        "--print-completion", choices=("bash", "zsh", "tcsh"), action=_Completion, help="print a completion script"
    )
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", prog="convrec", help=argparse.SUPPRESS
    )
    for add in (
        stage.add,
        preflight.add,
        experiments.add,
        responses.add,
        data.add,
        evaluate.add,
        recommender.add,
        serving.add,
        registry.add,
        online.add,
        monitoring.add,
        feedback.add,
        tracking.add,
    ):
        add(commands)
    parser.epilog = "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<22} {commands.choices[name].description}" for name in names)])
        for title, names in _GROUPS.items()
    )
    return parser


def _check_texts(arguments: Sequence[str]) -> None:
    for place, argument in enumerate(arguments, start=1):
        if not is_clean(argument):
            raise InputError(f"argument {place}, {ascii(argument):.99}: not UTF-8, or with a NUL; write it in UTF-8")


def _interrupted(name: str) -> NoReturn:
    """End after Ctrl-C: with one line, and at once.

    An orderly end of Python would find threads of libraries (torch, tokenizers, Arrow) amid their start or their work,
    whose C++ destructors then abort the process ("terminate called without an active exception", status 134). What a
    command has open, it has closed by now, in its `finally` and `with`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for child in multiprocessing.active_children():  # as an orderly end does
        child.terminate()
    print(f"{name}: interrupted", file=sys.stderr)
    leave(EXIT_INTERRUPTED)


def _follow_flow(with_output: bool) -> None:
    """Log to the file that the flow reads, if a flow started this command; form a session, which the flow can end."""
    path = os.environ.get(LOG)
    if path is None:
        return
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2) if with_output else (2,):
        os.dup2(log, descriptor)
    os.close(log)
    if "RANK" not in os.environ and os.getsid(0) != os.getpid():
        with suppress(PermissionError):  # it leads a group of processes already
            os.setsid()


def _recorded(command: str) -> AbstractContextManager[object]:
    """Keep the record of a command that a flow started; `convrec run` keeps its stage's."""
    is_followed = LOG in os.environ and command != "run"
    return recorded(command, Paths().record(command)) if is_followed else nullcontext()


def _reader_has_left() -> bool:
    """Return whether the reader of standard output has left, as `head` does; then also discard what is still buffered.

    Other broken pipes, such as those of a server, are errors.
    """
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # standard output has been replaced
        return False
    state = select.poll()
    state.register(descriptor, select.POLLOUT)
    has_left = any(event & select.POLLERR for _, event in state.poll(0))
    if has_left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return has_left


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Mistakes of the user end with one line and status 2, what may be back later with 75, Ctrl-C with 130.
    """
    given = sys.argv[1:] if arguments is None else arguments
    name = "convrec"
    try:
        _check_texts(given)
        if not given:
            print(_BEGIN, end="")
            return
        options = _parser().parse_args(given)
        name = " ".join(filter(None, ["convrec", options.command, getattr(options, "stage", "")]))
        from convrec.training.launch import end_with_parent, is_supervised  # noqa: PLC0415  (as the commands)

        if is_supervised():
            end_with_parent()
        _follow_flow(options.command == "run")
        _set_up()
        with _recorded(options.command):
            status = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _interrupted(name)
    except SystemExit:  # the parser's, after a help text
        _reader_has_left()
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_has_left():
            sys.exit(EXIT_PIPE)
        if any(
            isinstance(cause, KeyboardInterrupt) for cause in causes(error)
        ):  # a library has replaced the KeyboardInterrupt
            _interrupted(name)
        reported = error if exit_status(error) else outside_cause(error)
        if reported is None:
            raise
        print(f"{name}: {reported}", file=sys.stderr)
        sys.exit(exit_status(reported))
    if status is not None:
        sys.exit(status)


if __name__ == "__main__":
    from convrec.training.launch import rank_process

    with rank_process():
        main()
