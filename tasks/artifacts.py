"""Tables, links and progress in Prefect's UI."""

import logging
import time
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)

from convrec.project.stage_record import Progress

logger = logging.getLogger(__name__)

SHOWN = {"shown": True}  # `extra` of a log line that is also shown in a flow's terminal
_SECONDS = 2.0  # minimum time between two updates


def show_table(key: str, markdown: str, description: str) -> None:
    """Show a Markdown text; its key (letters, digits, dashes) is that of all runs, so Prefect keeps the versions."""
    create_markdown_artifact(markdown, key=key, description=description)


def show_link(key: str, address: str, text: str) -> None:
    """Show a link."""
    create_link_artifact(address, link_text=text, key=key)


class ProgressBar:
    """The progress of a command in Prefect's UI.

    If the server is down, the next call tries again; a training does not end for that.
    """

    def __init__(self, name: str):
        self._name = name
        self._artifact: UUID | None = None
        self._updated = 0.0

    def show(self, progress: Progress | None) -> None:
        """Show how many of its steps are done, at most every two seconds."""
        if progress and progress.steps > 0 and time.monotonic() - self._updated >= _SECONDS:
            self._updated = time.monotonic()
            self._show(min(100 * progress.step / progress.steps, 100.0))

    def finish(self) -> None:
        """Show 100 % for a command that reported progress."""
        if self._artifact is not None:
            self._show(100.0)

    def _show(self, percent: float) -> None:
        try:
            if self._artifact is None:
                key = f"progress-{self._name.replace('_', '-')}"
                self._artifact = create_progress_artifact(percent, key=key, description=f"`{self._name}`")
            else:
                update_progress_artifact(self._artifact, percent)
        except Exception as error:  # from Prefect's client, httpx or the server
            logger.warning("the progress of %s could not be updated (%s)", self._name, str(error)[:120])
