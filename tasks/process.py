"""Runs a task's command: streams its output, enforces its timeout, and ends it with the task."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

import psutil

from convrec.training.launch import ends_with_this_process

GRACE_SECONDS = 25  # time to write a checkpoint; a worker kills a cancelled flow run after 30 s
_POLL_SECONDS = 0.1


def end_session(leader: int, grace_seconds: float = GRACE_SECONDS) -> None:
    """End all processes of a session and all descendants of its leader: SIGTERM first, SIGKILL after the grace period.

    Processes that start meanwhile get SIGTERM once those that were signalled before have ended. A single scan can miss
    a process that starts during the scan, so two empty scans are required.
    """
    deadline = time.monotonic() + grace_seconds
    signalled: set[psutil.Process] = set()
    empty = 0
    while empty < 2:
        members = _members(leader) | {process for process in signalled if _runs(process)}
        empty = 0 if members else empty + 1
        late = time.monotonic() > deadline
        if late or signalled.isdisjoint(members):
            for process in members:
                with suppress(psutil.NoSuchProcess):  # it has already ended
                    process.kill() if late else process.terminate()
            signalled |= members
        time.sleep(_POLL_SECONDS)


def _members(leader: int) -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(pid) == leader:
                process = psutil.Process(pid)
                found |= {process, *process.children(recursive=True)}
    return {process for process in found if _runs(process)}


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def run_command(
    command: Sequence[str], environment: dict[str, str], on_line: Callable[[str], None], timeout_seconds: float | None
) -> int:
    """Run a command in its own session; return its exit status, negative for a signal.

    `on_line` gets each line of its output as it is printed. If this call ends early, by cancellation, an error or
    Ctrl-C, all processes of the command are ended. If this process is killed, the command gets SIGTERM. Raises
    `TimeoutError` after the timeout.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=ends_with_this_process(signal.SIGTERM),
    )
    overrun = threading.Event()

    def end_late() -> None:
        overrun.set()
        end_session(process.pid)

    limit = threading.Timer(timeout_seconds, end_late) if timeout_seconds else None
    assert process.stdout is not None
    try:
        if limit:
            limit.start()
        _read(process.stdout, on_line)
        status = process.wait()
    finally:
        if limit:
            limit.cancel()
        end = threading.Thread(target=end_session, args=(process.pid,))
        end.start()
        _read(process.stdout, on_line)  # its last output, for example about its checkpoint
        end.join()
        process.wait()
    if overrun.is_set():
        raise TimeoutError
    return status


def _read(output: TextIO, on_line: Callable[[str], None]) -> None:
    for line in output:
        if line.strip():
            on_line(line.rstrip())
