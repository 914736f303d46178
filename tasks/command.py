"""Runs a `convrec` command outside the graph as part of a task; it prints JSON and uses the GPU."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from prefect.logging import get_run_logger

from tasks.artifacts import Progress
from tasks.dvc_stage import failure, gpu_slot, tool_environment
from tasks.process import run_command


def ask_convrec(*arguments: str, timeout_hours: float, success: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Return the JSON objects that `convrec ARGUMENTS --json` prints, one per line; other output is logged.

    The command holds a slot of the concurrency limit `gpu`, and ends with the task. Raises `StageFailed` if its exit
    status is not in `success`, or it exceeds the timeout.
    """
    name = f"convrec {arguments[0]}"
    logger, progress = get_run_logger(), Progress(arguments[0])
    lines: list[str] = []
    objects: list[dict[str, Any]] = []

    def on_line(line: str) -> None:
        if line.startswith("{"):
            objects.append(json.loads(line))
            return
        logger.info(line)
        progress.read(line)
        lines[:] = [*lines[-3:], line]

    command = [sys.executable, "-m", "convrec.cli", *arguments, "--json"]
    with gpu_slot():
        try:
            status = run_command(command, tool_environment(), on_line, timeout_hours * 3600)
        except TimeoutError:
            raise failure(f"{name}, with a timeout of {timeout_hours:g} hours,", 124, lines) from None
    if status not in success:
        raise failure(name, status, lines)
    progress.finish()
    return objects
