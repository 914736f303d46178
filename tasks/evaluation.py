"""Registered versions on the present test split, beside the graph."""

import json
import sys
from typing import Any

from prefect import task
from prefect.logging import get_run_logger

from tasks.artifacts import Progress
from tasks.dvc_stage import failure, gpu_slot, tool_environment
from tasks.process import run_command


@task(task_run_name="evaluate {names}")
def evaluate_versions(names: list[str], timeout_hours: float) -> list[dict[str, Any]]:
    """Return what `convrec evaluate` finds out about these models, their lists taken from the catalog.

    Raises `StageFailed` where it fails or takes too long.
    """
    logger, progress = get_run_logger(), Progress("evaluate")
    lines: list[str] = []
    results: list[dict[str, Any]] = []

    def on_line(line: str) -> None:
        if line.startswith("{"):
            results.append(json.loads(line))
            return
        logger.info(line)
        progress.read(line)
        lines[:] = [*lines[-3:], line]

    chosen = [part for name in names for part in ("--model", name)]
    command = [sys.executable, "-m", "convrec.cli", "evaluate", "--split", "test", "--constrained", "--json", *chosen]
    with gpu_slot():
        try:
            status = run_command(command, tool_environment(), on_line, timeout_hours * 3600)
        except TimeoutError:
            raise failure(f"convrec evaluate, given {timeout_hours:g} hours,", 124, lines) from None
    if status:
        raise failure("convrec evaluate", status, lines)
    progress.finish()
    return results
