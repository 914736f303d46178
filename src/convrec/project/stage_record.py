"""The record of a stage: what it does, the figures of its last step, and how it ended.

The stage alone writes it, to `runs/NAME.json`; the flows read it, for their terminal and for messages of errors.
A training reports figures by a log line: `logger.info("step 3 of 80", extra={"figures": {"loss": 0.3}})`.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from convrec.project.atomic import write_text
from convrec.project.errors import reported_error
from convrec.project.redaction import redact

_MESSAGE = 2000  # characters


@dataclass(frozen=True)
class StageRecord:
    """The contents of a record; `run_id` is that of its MLflow run."""

    stage: str
    pid: int
    started: float  # seconds since 1970
    state: Literal["running", "finished", "failed"] = "running"
    message: str = ""  # why it failed
    run_id: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def recorded(stage: str, path: Path) -> Iterator["RecordWriter"]:
    """Write the record of a command from its begin to its end, with the message of its error."""
    writer, log = RecordWriter(stage, path), logging.getLogger("convrec")
    log.addHandler(writer)
    try:
        yield writer
        writer.update(state="finished")
    except BaseException as error:
        reported = reported_error(error)
        message = str(reported) if reported else f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the disk may be full
            writer.update(state="failed", message=redact(message)[:_MESSAGE])
        raise
    finally:
        log.removeHandler(writer)


def read_record(path: Path) -> StageRecord | None:
    """Return the record of a file; None if there is none yet, or it cannot be read."""
    try:
        return StageRecord(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class RecordWriter(logging.Handler):
    """Writes the record of this process; as a handler of the log, it takes the figures from the lines."""

    def __init__(self, stage: str, path: Path):
        super().__init__()
        self._path = path
        self._values: dict[str, Any] = asdict(StageRecord(stage, os.getpid(), time.time()))
        self.update()

    def update(self, **values: Any) -> None:
        """Set fields of the record."""
        self._values |= values
        write_text(self._path, json.dumps(self._values) + "\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Take the figures of a log line; they are written when the stage ends."""
        if figures := getattr(record, "figures", None):
            self._values["figures"] = figures
