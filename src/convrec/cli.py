"""The command line `convrec COMMAND`; the commands are in `pipeline/commands/`."""

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from convrec.project.errors import EXIT_INTERRUPTED, EXIT_PIPE, InputError, causes, leave, reported_error
from convrec.project.machine import keep_freed_memory, limit_threads, quiet_libraries
from convrec.project.redaction import redact
from convrec.project.text import is_clean
from convrec.training.launch import LOG, end_with_parent, is_supervised, rank_process

if TYPE_CHECKING:
    from cyclopts import App


def _set_up() -> None:
    """Set logging, threads and memory: the only place where global state is set. Seeds are passed on."""
    limit_threads()
    keep_freed_memory()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("convrec").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # otherwise logs every retry of a server that is down
    quiet_libraries()


def load_commands() -> "App":
    """Import the modules of the commands, and return the application that they have joined."""
    # Called inside `main`, which handles Ctrl-C.
    from convrec.pipeline.commands import app, data, experiments, feedback, lists, registry, service, stage  # noqa: PLC0415, F401

    return app


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


def _follow_flow() -> None:
    """Write to the file that the flow reads, if a flow started this stage; form a session, which the flow can end."""
    path = os.environ.get(LOG)
    if path is None:
        return
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    if "RANK" not in os.environ and os.getsid(0) != os.getpid():
        with suppress(PermissionError):  # it leads a group of processes already
            os.setsid()


def _parse(app: "App", given: list[str], name: str) -> tuple[Callable[[], int | None], bool]:
    """Return what the arguments ask for, and whether it is a help text. Raises `InputError` for a mistake in them."""
    from cyclopts import CycloptsError  # noqa: PLC0415  (as the commands)

    try:
        function, values, _ = app.parse_args(given)
    except CycloptsError as error:
        raise InputError(f"{error!s:.500} `{name} --help` lists the choices") from None
    is_help = isinstance(getattr(function, "__self__", None), type(app))
    if is_help and not {*app.help_flags, *app.version_flags} & set(given):
        raise InputError(f"a subcommand is missing; `{name} --help` lists the choices")
    return partial(function, *values.args, **values.kwargs), is_help


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    Mistakes of the user end with one line and status 2, what may be back later with 75, Ctrl-C with 130.
    """
    given = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    name = "convrec"
    try:
        for place, text in enumerate(given, start=1):
            if not is_clean(text):
                raise InputError(f"argument {place}, {ascii(text):.99}: not UTF-8, or with a NUL; write it in UTF-8")
        app = load_commands()
        words = app.parse_commands(given)[0]
        name = " ".join(["convrec", *(word for word in words if not word.startswith("-"))])
        action, is_help = _parse(app, given, name)
        if not is_help:
            if is_supervised():
                end_with_parent()
            if words[0] == "run":
                _follow_flow()
            _set_up()
        status = action()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(EXIT_PIPE)
    except KeyboardInterrupt:
        _interrupted(name)
    except Exception as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes(error)):  # a library has replaced it
            _interrupted(name)
        reported = reported_error(error)
        if reported is None:
            raise
        print(f"{name}: {redact(str(reported))}", file=sys.stderr)
        sys.exit(reported.status)
    if status is not None:
        sys.exit(status)


if __name__ == "__main__":
    with rank_process():
        main()
