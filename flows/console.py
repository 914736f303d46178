"""The terminal output of a flow: one line for each stage, and the progress of the current one.

The complete log goes to Prefect's server, with or without a terminal.
"""

import logging
import re
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.status import Status

_CLOCK = re.compile(r"^\d\d:\d\d:\d\d ")
_SECONDS = 60.0  # between two lines about a running stage, if the output is not a terminal


def duration(seconds: float) -> str:
    """Return a duration as text, such as `2m 05s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


class StageConsole(logging.Handler):
    """Shows the log of a flow's tasks: one line for each finished stage of `stages`, and a live line for the current.

    A line has the stage's number, its duration and, for a training, its last figures. Warnings, errors and lines logged
    with `SHOWN` are shown in full. The tasks pass the progress with each line, and name the stages that have ended or
    are up to date (`extra`).
    """

    def __init__(self, stages: Sequence[str], console: Console):
        super().__init__()
        self._console = console
        self._places = {stage: f"[{place}/{len(stages)}]" for place, stage in enumerate(stages, start=1)}
        self._live: Status | None = None
        self._start("")

    def _start(self, task: str) -> None:
        self._task = task
        self._figures: Mapping[str, float] = {}  # of the last step
        self._began = self._shown = time.monotonic()  # the task, and the last line about it

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of a task run or a flow run."""
        task, text = getattr(record, "task_run_name", ""), _CLOCK.sub("", record.getMessage())
        if record.levelno >= logging.WARNING:
            self._print(f"{task}: {text}" if task else text)
        elif getattr(record, "shown", False):
            self._print(text)
        elif stage := getattr(record, "up_to_date", ""):
            self._print(self._line(stage, "up to date"))
        elif stage := getattr(record, "ended", ""):
            self.close()
            figures = "  ".join(f"{name} {value:.4g}" for name, value in self._figures.items())
            self._print(self._line(stage, duration(time.monotonic() - self._began), figures))
        elif task:
            if task != self._task:
                self._start(task)
            progress = getattr(record, "progress", None)
            self._figures = (progress and progress.figures) or self._figures  # a validation's line has none
            self._show(text)

    def _line(self, task: str, first: str, rest: str = "") -> str:
        return f"{self._places.get(task, ''):<6} {task:<15} {first:>10}  {rest}".rstrip()

    def _show(self, text: str) -> None:
        line = self._line(self._task, duration(time.monotonic() - self._began), text)
        if self._console.is_terminal:
            if self._live is None:
                self._live = self._console.status("", spinner="dots")
                self._live.start()
            self._live.update(line[: self._console.width - 4])
        elif time.monotonic() - self._shown >= _SECONDS:
            self._shown = time.monotonic()
            self._print(line)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
