"""The task that checks the recorded feedback, and the event of an alarm."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.events import emit_event
from prefect.logging import get_run_logger

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.registry.tracking import run_address
from convrec.service.monitoring.checks import Check
from tasks.artifacts import SHOWN, show_link, show_table
from tasks.command import RETRIES


@task(task_run_name="check feedback", **RETRIES)
def check_feedback(until: str | None) -> dict[str, Any]:
    """Return the result of `convrec monitor`; show its checks, and links to the run and the report.

    Raises `Unavailable` if the feedback database or the tracking server is away.
    """
    from convrec.pipeline.monitor import monitor  # imports torch

    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    result = monitor(load_params(), Paths(), end if end.tzinfo else end.replace(tzinfo=UTC))
    lines = [str(Check(**values)) for values in result["checks"]]
    for line in lines:
        get_run_logger().info(line, extra=SHOWN)
    text = [f"{result['model']}, {result['since']} to {result['until']}\n", *(f"- {line}" for line in lines)]
    show_table("monitoring", "\n".join(text), "The checks of the recorded feedback")
    if address := run_address(result["run_id"]):
        show_link("monitoring-run", address, "The run in MLflow")
        show_link("monitoring-report", f"{address}/artifacts/{Path(result['report']).name}", "The report")
    return result


def emit_alarm(result: dict[str, Any], flow_run: str) -> None:
    """Emit the event `convrec.monitor.alarm`, with the checks that raise an alarm; an automation can react to it."""
    alarms = [check for check in result["checks"] if check["status"] == "alarm"]
    payload = {
        "flow_run": flow_run,
        "summary": f"{result['model']}: alarm of {', '.join(check['name'] for check in alarms)}",
        **{name: result[name] for name in ("model", "since", "until", "run_id")},
        "alarms": alarms,
    }
    resource = {"prefect.resource.id": "convrec.monitor", "prefect.resource.name": "convrec monitor"}
    emit_event("convrec.monitor.alarm", resource, payload=payload)
