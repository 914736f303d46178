"""The task that checks the recorded feedback, and the event of an alarm."""

from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.registry.tracking import run_address
from convrec.service.monitoring.checks import ALARM, Check
from tasks.command import RETRIES, SHOWN


@task(task_run_name="check feedback", **RETRIES)
def check_feedback(until: datetime) -> dict[str, Any]:
    """Return the result of `convrec monitor`; show its checks, and links to the run and the report.

    An alarm emits the event `convrec.monitor.alarm`, with its checks; an automation can react to it. Raises
    `Unavailable` if the feedback database or the tracking server is away.
    """
    from convrec.pipeline.monitor import monitor  # imports torch

    result, logger = monitor(load_params(), Paths(), until), get_run_logger()
    lines = [str(Check(**values)) for values in result["checks"]]
    for line in lines:
        logger.info(line, extra=SHOWN)
    text = [f"{result['model']}, {result['since']} to {result['until']}\n", *(f"- {line}" for line in lines)]
    create_markdown_artifact("\n".join(text), key="monitoring", description="The checks of the recorded feedback")
    if address := run_address(result["run_id"]):
        create_link_artifact(address, link_text="The run in MLflow", key="monitoring-run")
        report = f"{address}/artifacts/{Path(result['report']).name}"
        create_link_artifact(report, link_text="The report", key="monitoring-report")
    if result["alarm"]:
        logger.warning("alarm: see the report")
        alarms = [check for check in result["checks"] if check["status"] == ALARM]
        payload = {
            "flow_run": str(flow_run.get_id()),
            "summary": f"{result['model']}: alarm of {', '.join(check['name'] for check in alarms)}",
            **{name: result[name] for name in ("model", "since", "until", "run_id")},
            "alarms": alarms,
        }
        resource = {"prefect.resource.id": "convrec.monitor", "prefect.resource.name": "convrec monitor"}
        emit_event("convrec.monitor.alarm", resource, payload=payload)
    return result
