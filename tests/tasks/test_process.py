"""Commands of a task: their lines, their ends, and that nothing of them goes on."""

import os
import signal
import sys

import psutil
import pytest

from tasks.process import end_session, run_command

PARENT = ["sh", "-c", "sleep 600 & echo $!; wait; sleep 600"]  # it goes on when its child is ended first


def _run(command: list[str], on_line=lambda _: None, timeout: float | None = None) -> int:
    return run_command(command, dict(os.environ), on_line, timeout)


def _python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_lines_come_as_they_are_printed_and_blank_ones_do_not():
    lines = []
    script = "import sys; print('one', flush=True); print(); print('two', file=sys.stderr); sys.exit(3)"
    assert _run(_python(script), lines.append) == 3
    assert lines == ["one", "two"]


def test_a_signal_is_a_negative_status():
    assert _run(["sh", "-c", "kill -9 $$"]) == -signal.SIGKILL


def test_a_command_that_takes_too_long_is_ended_with_its_children():
    lines = []
    with pytest.raises(TimeoutError):
        _run(PARENT, lines.append, timeout=3.0)
    assert _gone(int(lines[0]))


def test_a_task_that_is_cancelled_leaves_nothing_behind():
    found = []

    def cancel(line: str) -> None:
        found.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(PARENT, cancel)
    assert _gone(found[0])


def test_what_a_command_starts_at_its_end_is_ended_too():
    lines = []

    def cancel(line: str) -> None:
        lines.append(line)
        if line == "on":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(["sh", "-c", "trap 'sleep 600 & echo $!; exit' TERM; echo on; while true; do sleep 0.1; done"], cancel)
    assert _gone(int(lines[-1]))


def test_what_does_not_end_is_killed_after_the_grace():
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    process = psutil.Popen(_python(script), stdout=-1, start_new_session=True)
    assert process.stdout.readline() == b"on\n"
    end_session(process.pid, grace_seconds=0.2)
    assert process.wait(10) == -signal.SIGKILL
    end_session(process.pid)  # what is gone already is no error
