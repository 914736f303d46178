"""Commands of convrec that tasks run, each in one process: their log, progress, timeout and end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.tasks import exponential_backoff

from convrec.project.errors import EXIT_UNAVAILABLE, InputError, Unavailable, outside_cause
from convrec.project.machine import family
from convrec.project.paths import Paths
from convrec.project.stage_record import read_record
from convrec.training.launch import LOG, SUPERVISED, ends_with_this_process
from tasks.artifacts import ProgressBar
from tasks.server import gpu_slot

GRACE_SECONDS = 25  # time to write a checkpoint; a worker kills a cancelled flow run after 30 s
_POLL_SECONDS = 0.1
_TIMED_OUT = 124  # as `timeout` exits
_TAIL = 4  # lines of a killed command's log in the message
T = TypeVar("T")


class StageFailed(RuntimeError):
    """A command of a task failed with this exit status: 128 + N if signal N ended it."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status if status >= 0 else 128 - status


def failure(name: str, status: int) -> StageFailed:
    """Return the error for a command's exit status, with the message of its record, or else the end of its log."""
    record = read_record(Paths().record(name))
    log = Paths().log(name)
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    words = record.message if record and record.message else " | ".join(lines[-_TAIL:])
    return StageFailed(f"{name} ended with status {status}{f': {words}' if words else ''}", status)


def is_retryable(_task: object, _run: object, state: State) -> bool:
    """Return whether a retry can help: a GPU or a server was unavailable, or a command was killed.

    A training then resumes from its last checkpoint.
    """
    error = state.result(raise_on_failure=False)
    if isinstance(error, StageFailed):
        return error.status == EXIT_UNAVAILABLE or error.status > 128
    return isinstance(error if isinstance(error, InputError | Unavailable) else outside_cause(error), Unavailable)


RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": exponential_backoff(backoff_factor=10),
    "retry_condition_fn": is_retryable,
}


def tool_path() -> str:
    """Return PATH with the commands of this Python environment first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables of this process, which the commands that it starts inherit, for the time of the block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def follow(name: str, work: Callable[[], T], hours: float | None, variables: dict[str, str] | None = None) -> T:
    """Return the result of `work`, which starts the command NAME of convrec and waits for it, in a thread.

    The command writes `runs/NAME.log` and `runs/NAME.json`; the lines of its log go to the task's log, with the
    progress of its record. If this call ends early, by cancellation, an error or Ctrl-C, all processes of the command
    are ended. If this process is killed, the command gets SIGTERM. Raises `StageFailed` after `hours`.
    """
    log, record = Paths().log(name), Paths().record(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    record.unlink(missing_ok=True)
    given = {SUPERVISED: str(os.getpid()), LOG: str(log.absolute()), "PATH": tool_path(), **(variables or {})}
    others = set(psutil.Process().children())
    deadline = time.monotonic() + hours * 3600 if hours else None
    logger, bar = get_run_logger(), ProgressBar(name)
    with _environment(given), ThreadPoolExecutor(1) as thread, log.open(errors="replace") as lines:

        def pass_on() -> None:
            new = [line.rstrip() for line in lines if line.strip()]
            found = read_record(record) if new else None
            steps = found.progress if found else None
            for line in new:
                logger.info(line, extra={"progress": steps})
            bar.show(steps)

        running = thread.submit(work)
        try:
            while not running.done():
                wait([running], timeout=_POLL_SECONDS)
                pass_on()
                if deadline and time.monotonic() > deadline:
                    raise StageFailed(
                        f"{name} exceeded its timeout of {hours:g} hours; start again to go on from what is done "
                        "(the timeout of a stage is its timeout_hours in dvc.yaml)",
                        _TIMED_OUT,
                    )
        finally:
            found = read_record(record)
            started = {process.pid for process in set(psutil.Process().children()) - others}
            for leader in started | ({found.pid} if found else set()):
                end_command(leader)
            pass_on()  # its last lines, for example about its checkpoint
        bar.finish()
        return running.result()


def ask_convrec(*arguments: str, timeout_hours: float, success: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Return the JSON objects that `convrec ARGUMENTS --json` prints, one per line.

    The command holds a slot of the concurrency limit `gpu`, and ends with the task. Raises `StageFailed` if its exit
    status is not in `success`, or it exceeds the timeout.
    """
    command = ["convrec", *arguments, "--json"]

    def work() -> subprocess.CompletedProcess[str]:
        ends = ends_with_this_process(signal.SIGTERM)
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        return subprocess.run(command, stdout=pipe, stdin=none, text=True, preexec_fn=ends, check=False)  # noqa: PLW1509

    with gpu_slot():
        ended = follow(arguments[0], work, timeout_hours)
    if ended.returncode not in success:
        raise failure(arguments[0], ended.returncode)
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def end_command(leader: int, grace_seconds: float = GRACE_SECONDS) -> None:
    """End a process, its session and their descendants: SIGTERM first, SIGKILL after the grace period.

    The session may have outlived its leader. Processes that start meanwhile get SIGTERM once those before have ended.
    No child of this process is waited for: the thread that has started it needs its exit status.
    """
    deadline = time.monotonic() + grace_seconds
    signalled: set[psutil.Process] = set()
    empty = 0
    while empty < 2:  # one scan can miss a process that starts during it
        members = {process for process in _members(leader, signalled) if _runs(process)}
        empty = 0 if members else empty + 1
        is_late = time.monotonic() > deadline
        if is_late or signalled.isdisjoint(members):
            for process in members:
                with suppress(psutil.NoSuchProcess):
                    process.kill() if is_late else process.terminate()
            signalled |= members
        time.sleep(_POLL_SECONDS)


def _members(leader: int, known: set[psutil.Process]) -> set[psutil.Process]:
    """Return the leader, its session and the processes that are known, with their descendants."""
    found = {member for process in known for member in family(process)}
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if pid == leader or os.getsid(pid) == leader:
                found.update(family(psutil.Process(pid)))
    return found


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
