"""Commands of a task: their lines, their ends, and that nothing of them goes on."""

import os
import signal
import sys

import psutil
import pytest

from tasks.process import end_tree, run_command

# A process with a child; both say that they run, and go on for long.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def _run(script: str, on_line=lambda _: None, timeout: float | None = None) -> int:
    return run_command([sys.executable, "-c", script], dict(os.environ), on_line, timeout)


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_lines_come_as_they_are_printed_and_blank_ones_do_not():
    lines = []
    script = "import sys; print('one', flush=True); print(); print('two', file=sys.stderr); sys.exit(3)"
    assert _run(script, lines.append) == 3
    assert lines == ["one", "two"]


def test_a_signal_is_a_negative_status():
    assert _run("import os; os.kill(os.getpid(), 9)") == -signal.SIGKILL


def test_a_command_that_takes_too_long_is_ended_with_its_children():
    lines = []
    with pytest.raises(TimeoutError):
        _run(PARENT, lines.append, timeout=5.0)
    (child,) = (int(line) for line in lines if line.isdigit())
    assert _gone(child)


def test_a_task_that_is_cancelled_leaves_nothing_behind():
    found = []

    def cancel(line: str) -> None:
        found.append(line)
        if len(found) == 2:  # both run
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(PARENT, cancel)
    (child,) = (int(line) for line in found if line.isdigit())
    assert _gone(child)


def test_what_does_not_end_is_killed_after_the_grace():
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    process = psutil.Popen([sys.executable, "-c", script], stdout=-1)
    assert process.stdout.readline() == b"on\n"
    end_tree(process.pid, grace_seconds=0.2)
    assert process.wait(10) == -signal.SIGKILL
    end_tree(process.pid)  # what is gone already is no error
