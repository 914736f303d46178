"""The process of a stage that a task runs: its log, errors, retries, timeout and end."""

import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.tasks import exponential_backoff

from convrec.project.errors import EXIT_UNAVAILABLE, Reported, Unavailable, reported_error
from convrec.project.machine import family
from convrec.project.paths import Paths
from convrec.project.stage_record import read_record
from convrec.training.launch import LOG, SUPERVISED

SHOWN = {"shown": True}  # `extra` of a log line that is also shown in a flow's terminal
GRACE_SECONDS = 25  # time to write a checkpoint; a worker kills a cancelled flow run after 30 s
_POLL_SECONDS = 0.1
_TIMED_OUT = 124  # as `timeout` exits
_TAIL = 4  # lines of a killed command's log in the message


class StageFailed(Reported):
    """A stage failed with this exit status: 128 + N if signal N ended it."""

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
    return isinstance(reported_error(error), Unavailable)


RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": exponential_backoff(backoff_factor=10),
    "retry_condition_fn": is_retryable,
}


def follow(name: str, work: Callable[[dict[str, str]], int], hours: float | None, variables: dict[str, str]) -> int:
    """Return the result of `work`, which starts the stage NAME and waits for it, in a thread.

    It gets the environment variables that the stage needs beside this process's own: `variables`, and where to log.
    The stage writes `runs/NAME.log` and `runs/NAME.json`; the lines of its log go to the task's log. If this call ends
    early, by cancellation, an error or Ctrl-C, all processes of the stage are ended. If this process is killed, the
    stage gets SIGTERM. Raises `StageFailed` after `hours`.
    """
    log, record = Paths().log(name), Paths().record(name)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    record.unlink(missing_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {SUPERVISED: str(os.getpid()), LOG: str(log.absolute()), "PATH": path, **variables}
    others, task_log = set(psutil.Process().children()), get_run_logger()
    deadline = time.monotonic() + hours * 3600 if hours else math.inf
    with ThreadPoolExecutor(1) as thread, log.open(errors="replace") as lines:

        def pass_on() -> None:
            for line in filter(None, map(str.strip, lines)):
                task_log.info(line)

        running = thread.submit(work, environment)
        try:
            while not running.done():
                wait([running], timeout=_POLL_SECONDS)
                pass_on()
                if time.monotonic() > deadline:
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
        return running.result()


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
