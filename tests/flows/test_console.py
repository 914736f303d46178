import io
import logging
import re

import pytest
from rich.console import Console

from flows.console import FlowConsole, duration
from tasks.command import SHOWN


@pytest.fixture
def clock(monkeypatch):
    """The time, in seconds, as the one number of a list."""
    now = [0.0]
    monkeypatch.setattr("flows.console.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def show(clock):
    """Shows records of task runs, and returns what was written until then."""
    written = io.StringIO()
    shown = FlowConsole(Console(file=written, width=80))

    def emit(task: str, text: str, level: int = logging.INFO, **extra: object) -> str:
        record = logging.LogRecord("prefect.task_runs", level, "", 0, text, None, None)
        record.__dict__.update({"task_run_name": task, **extra})
        shown.emit(record)
        return written.getvalue()

    return emit


@pytest.mark.parametrize(("seconds", "output"), [(9.6, "10s"), (59.7, "1m 00s"), (125, "2m 05s"), (7260, "2h 01m")])
def test_durations(seconds, output):
    assert duration(seconds) == output


def test_of_other_lines_those_are_shown_that_are_to_be_and_errors(show):
    assert show("pull raw data", "no remote") == ""
    assert show("changes since HEAD", "Catalog: 480 -> 481 items", **SHOWN) == "Catalog: 480 -> 481 items\n"
    show("sft", "10:00:00 reading")
    output = show("sft", "10:00:01 Finished in state Failed('no file')", logging.ERROR)
    assert output.splitlines()[1:] == ["sft: Finished in state Failed('no file')"]


def test_the_live_line_says_that_a_task_is_done():
    written = io.StringIO()
    shown = FlowConsole(Console(file=written, width=80, force_terminal=True))
    record = logging.LogRecord("prefect.task_runs", logging.INFO, "", 0, "Finished in state Completed()", None, None)
    record.task_run_name = "sft"
    shown.emit(record)
    shown.close()
    assert re.search(r"sft +0s  done", written.getvalue())


def test_a_long_stage_shows_a_line_each_minute(show, clock):
    for second in range(0, 140, 10):
        clock[0] = second
        output = show("sft", f"10:00:00 step {second}/500  loss 2, 9 s left")
    assert [line.split(maxsplit=1) for line in output.splitlines()] == [
        ["sft", "1m 00s  step 60/500  loss 2, 9 s left"],
        ["sft", "2m 00s  step 120/500  loss 2, 9 s left"],
    ]
