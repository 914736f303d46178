"""A command that a task runs: its lines as they are printed, its time limit, and its end with the task."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

import psutil

GRACE_SECONDS = 25  # for a checkpoint: a worker kills the flow run that it cancels after 30


def end_tree(pid: int, grace_seconds: float = GRACE_SECONDS) -> None:
    """End a process and all below it: by SIGTERM, and what is left after the grace by SIGKILL."""
    try:
        first = psutil.Process(pid)
        tree = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        _tell(process.terminate)
    _, left = psutil.wait_procs(tree, timeout=grace_seconds)
    for process in left:
        _tell(process.kill)


def _tell(signal: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):  # it ended by itself
        signal()


def run_command(
    command: Sequence[str], environment: dict[str, str], on_line: Callable[[str], None], timeout_seconds: float | None
) -> int:
    """Run a command in a session of its own; return its exit status, negative for a signal.

    `on_line` gets each line of its output as it is printed. However this call is left, by cancelling, an error or
    Ctrl-C, nothing of the command goes on. Raises `TimeoutError` where it took longer than it may.
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
    )
    overrun = threading.Event()

    def end_late() -> None:
        overrun.set()
        end_tree(process.pid)

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
        end = threading.Thread(target=end_tree, args=(process.pid,))
        end.start()
        _read(process.stdout, on_line)  # what it says at its end, of its checkpoint for instance
        end.join()
        process.wait()
    if overrun.is_set():
        raise TimeoutError
    return status


def _read(output: TextIO, on_line: Callable[[str], None]) -> None:
    for line in output:
        if line.strip():
            on_line(line.rstrip())
