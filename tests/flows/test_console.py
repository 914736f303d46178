import io
import logging

import pytest
from rich.console import Console

from convrec.project.stage_record import Progress
from flows.console import StageConsole, duration
from tasks.artifacts import SHOWN


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
    shown = StageConsole(["data", "sft"], Console(file=written, width=80))

    def emit(task: str, text: str, level: int = logging.INFO, **extra: object) -> str:
        record = logging.LogRecord("prefect.task_runs", level, "", 0, text, None, None)
        record.__dict__.update({"task_run_name": task, **extra})
        shown.emit(record)
        return written.getvalue()

    return emit


@pytest.mark.parametrize(("seconds", "output"), [(9.6, "10s"), (59.7, "1m 00s"), (125, "2m 05s"), (7260, "2h 01m")])
def test_durations(seconds, output):
    assert duration(seconds) == output


def test_a_stage_that_ended_is_one_line_with_its_last_figures(show, clock):
    show("data", "stage data starts")
    show("data", "stage data has ended", ended="data")
    show("sft", "stage sft starts")
    clock[0] = 9.0
    show("sft", "10:00:00 step 25/50", progress=Progress(25, 50, {"loss": 3.1}))
    show("sft", "10:00:02 step 50/50", progress=Progress(50, 50, {"loss": 1.55}))
    show("sft", "10:00:03 the model is written", progress=Progress(50, 50))
    output = show("sft", "stage sft has ended", ended="sft")
    assert output.splitlines() == ["[1/2]  data                    0s", "[2/2]  sft                     9s  loss 1.55"]


def test_of_other_lines_those_are_shown_that_are_to_be_and_errors(show):
    assert show("pull raw data", "no remote") == ""
    assert show("changes since HEAD", "Catalog: 480 -> 481 items", **SHOWN) == "Catalog: 480 -> 481 items\n"
    show("", "stage data is up to date", up_to_date="data")
    show("sft", "10:00:00 reading")
    output = show("sft", "Finished in state Failed('no file')", logging.ERROR)
    assert output.splitlines()[1:] == ["[1/2]  data            up to date", "sft: Finished in state Failed('no file')"]


def test_a_long_stage_shows_a_line_each_minute(show, clock):
    for second in range(0, 140, 10):
        clock[0] = second
        output = show("sft", f"10:00:00 step {second}/500  loss 2, 9 s left")
    assert output.splitlines() == [
        "[2/2]  sft                 1m 00s  step 60/500  loss 2, 9 s left",
        "[2/2]  sft                 2m 00s  step 120/500  loss 2, 9 s left",
    ]
