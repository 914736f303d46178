"""Commands of a task: their log and errors, and that none of their processes is left."""

import logging
import os
import signal
import subprocess
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from prefect.states import Failed

from convrec.project.errors import InputError, Unavailable
from convrec.project.paths import Paths
from convrec.project.stage_record import recorded
from tasks.command import StageFailed, end_command, failure, follow, is_retryable

# A command with a child; it goes on when its child is ended first.
PARENT = ["sh", "-c", 'sleep 600 & echo $! >> "$CONVREC_LOG"; wait; sleep 600']


@pytest.fixture(autouse=True)
def folder(here, monkeypatch) -> Path:
    """An empty folder, entered; the tasks' log goes to the standard log."""
    monkeypatch.setattr("tasks.command.get_run_logger", lambda: logging.getLogger("task"))
    return here


def _run(command: list[str], timeout: float | None = None) -> int:
    hours = timeout / 3600 if timeout else None

    def work(variables: dict[str, str]) -> int:
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode

    return follow("sft", work, hours, {})


def _gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_lines_of_a_log_are_passed_on_and_blank_ones_are_not(caplog):
    caplog.set_level(logging.INFO)
    script = "for word in one '' two; do echo \"$word\" >> $CONVREC_LOG; done; exit 3"
    assert _run(["sh", "-c", script]) == 3
    assert caplog.messages == ["one", "two"]


def test_other_threads_keep_the_environment_that_they_set(monkeypatch):
    before = dict(os.environ)

    def work(variables: dict[str, str]) -> int:
        assert os.environ == before and variables["ONE"] == "1" and "CONVREC_LOG" in variables
        monkeypatch.setenv("CONVREC_OF_ANOTHER_THREAD", "set meanwhile")
        return 0

    assert follow("sft", work, None, {"ONE": "1"}) == 0 and os.environ.pop("CONVREC_OF_ANOTHER_THREAD")


def test_the_error_is_that_of_the_stage_s_record():
    with pytest.raises(InputError), recorded("sft", Paths().record("sft")):
        raise InputError("sft.lists = 3: give a step")
    assert str(failure("sft", 2)) == "sft ended with status 2: sft.lists = 3: give a step"


def test_a_killed_command_is_reported_with_the_end_of_its_log():
    status = _run(["sh", "-c", 'echo one >> "$CONVREC_LOG"; echo two >> "$CONVREC_LOG"; kill -9 $$'])
    assert status == -signal.SIGKILL
    assert str(failure("sft", status)) == "sft ended with status -9: one | two"


@pytest.mark.parametrize(
    ("error", "can_help"),
    [
        (failure("sft", 1), False),  # a defect of the program
        (failure("sft", 2), False),  # bad input
        (failure("sft", 74), False),  # a full disk
        (failure("sft", 75), True),  # a server or a GPU is away
        (failure("sft", -9), True),  # killed, as when memory runs out or a machine is taken back
        (failure("sft", 143), True),
        (ValueError("no"), False),
        (InputError("Connection refused"), False),
        (Unavailable("away"), True),
        (OSError("HTTPConnectionPool: Max retries exceeded with url: /api"), True),
    ],
)
def test_only_errors_that_a_retry_can_fix_are_retried(error, can_help):
    assert is_retryable(None, None, Failed(data=error)) == can_help


def test_a_command_that_takes_too_long_is_ended_with_its_children(folder):
    with pytest.raises(StageFailed, match="exceeded its timeout of"):
        _run(PARENT, timeout=1.0)
    assert _gone(int(Paths().log("sft").read_text()))


def test_a_task_that_is_cancelled_leaves_no_process(folder, monkeypatch):
    monkeypatch.setattr(logging.getLogger("task"), "info", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        _run(PARENT)
    assert _gone(int(Paths().log("sft").read_text()))


def test_a_killed_command_leaves_no_process_of_its_session():
    script = "trap '' TERM; sleep 600 & echo $!; wait"
    leader = psutil.Popen(["sh", "-c", script], stdout=-1, start_new_session=True)
    child = int(leader.stdout.readline())
    leader.kill()
    leader.wait(10)
    assert not _gone(child)
    end_command(leader.pid, grace_seconds=0.2)
    assert _gone(child)
