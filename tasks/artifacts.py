"""Tables, links and progress in Prefect's UI."""

import logging
import re
import time
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

logger = logging.getLogger(__name__)

SHOWN = {"shown": True}  # `extra` of a log line that is also shown in a flow's terminal
_STEP = re.compile(r"\b(?:step|generated) (\d+)(?:/| of )(\d+)\b")
_SECONDS = 2.0  # minimum time between two updates


def _key(*words: str) -> str:
    """Return an artifact's key; Prefect allows lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def show_table(name: str, markdown: str, description: str) -> None:
    """Show a Markdown text; its key is the same in all runs, so Prefect keeps the versions."""
    create_markdown_artifact(markdown, key=_key(name), description=description)


def show_link(name: str, address: str, text: str) -> None:
    """Show a link."""
    create_link_artifact(address, link_text=text, key=_key(name))


class Progress:
    """The progress of a stage, read from its log lines (`step 3/80`, `generated 9 of 300`).

    If the server is down, the next line tries again; a training does not end for that.
    """

    def __init__(self, stage: str):
        self._stage = stage
        self._artifact: UUID | None = None
        self._updated = 0.0

    def read(self, line: str) -> None:
        """Read one line of the stage's log."""
        found = _STEP.search(line)
        if not found or int(found.group(2)) == 0 or time.monotonic() - self._updated < _SECONDS:
            return
        self._updated = time.monotonic()
        self._show(100 * int(found.group(1)) / int(found.group(2)))

    def finish(self) -> None:
        """Show 100 % for a stage that logged progress."""
        if self._artifact is not None:
            self._show(100.0)

    def _show(self, percent: float) -> None:
        percent = min(percent, 100.0)
        try:
            if self._artifact is None:
                key = _key("progress", self._stage)
                self._artifact = create_progress_artifact(percent, key=key, description=f"Stage `{self._stage}`")
            else:
                update_progress_artifact(self._artifact, percent)
        except Exception as error:  # from Prefect's client, httpx or the server
            logger.warning("the progress of %s could not be updated (%s)", self._stage, str(error)[:120])
