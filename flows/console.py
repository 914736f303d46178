"""The terminal output of a flow: its own lines, warnings and errors, and the progress of the current task.

The complete log goes to Prefect's server, with or without a terminal.
"""

import logging
import re
import time

from rich.console import Console

_CLOCK = re.compile(r"^\d\d:\d\d:\d\d ")
_COMPLETED = "Finished in state Completed()"  # Prefect's line about a task
_SECONDS = 60.0  # between two lines about a running stage, if the output is not a terminal


def duration(seconds: float) -> str:
    """Return a duration as text, such as `2m 05s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


class FlowConsole(logging.Handler):
    """Shows the log of a flow: warnings, errors and lines logged with `SHOWN` in full, others as one live line."""

    def __init__(self, console: Console):
        super().__init__()
        self._console, self._status = console, console.status("")
        self._task = ""
        self._began = self._shown = 0.0  # the task, and the last line about it

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record of a task run or a flow run."""
        task, text = getattr(record, "task_run_name", ""), _CLOCK.sub("", record.getMessage())
        text = "done" if text == _COMPLETED else text
        if record.levelno >= logging.WARNING:
            self._print(f"{task}: {text}" if task else text)
        elif getattr(record, "shown", False):
            self._print(text)
        elif task:
            now = time.monotonic()
            if task != self._task:
                self._task, self._began, self._shown = task, now, now
            line = f"{task:<22} {duration(now - self._began):>10}  {text}"
            if self._console.is_terminal:
                self._status.update(line[: self._console.width - 4])
                self._status.start()
            elif now - self._shown >= _SECONDS:
                self._shown = now
                self._print(line)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the live line."""
        self._status.stop()
        super().close()
