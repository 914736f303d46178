"""A command of `convrec` beside the graph, as a part of a task: it speaks JSON, and needs the GPU."""

import json
import sys
from collections.abc import Sequence
from typing import Any

from prefect.logging import get_run_logger

from tasks.artifacts import Progress
from tasks.dvc_stage import failure, gpu_slot, tool_environment
from tasks.process import run_command


def ask_convrec(*arguments: str, timeout_hours: float, success: Sequence[int] = (0,)) -> list[dict[str, Any]]:
    """Return the JSON objects that `convrec ARGUMENTS --json` prints, a line each; what else it says is logged.

    It holds a slot of the limit `gpu`, and ends with the task. Raises `StageFailed` where its exit status is none of
    `success`, or it takes too long.
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
            raise failure(f"{name}, given {timeout_hours:g} hours,", 124, lines) from None
    if status not in success:
        raise failure(name, status, lines)
    progress.finish()
    return objects
