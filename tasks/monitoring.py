"""The task that checks the recorded feedback, and the event of an alarm."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.events import emit_event
from prefect.logging import get_run_logger

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from tasks.artifacts import SHOWN, show_link, show_table
from tasks.command import RETRIES

EVENT = "convrec.monitor.alarm"
RESOURCE = "convrec.monitor"  # the event's resource id
_COLUMNS = ("check", "verdict", "figure", "limit", "sample")


@task(task_run_name="check feedback", **RETRIES)
def check_feedback(until: str | None) -> dict[str, Any]:
    """Return the result of `convrec monitor`; show its table, and links to the run and the report.

    Raises `Unavailable` if the feedback database or the tracking server is away.
    """
    from convrec.pipeline.monitor import monitor
    from convrec.registry.tracking import run_address
    from convrec.service.monitoring.checks import Check

    end = datetime.now(UTC) if until is None else datetime.fromisoformat(until)
    result = monitor(load_params(), Paths(), end if end.tzinfo else end.replace(tzinfo=UTC))
    checks = [Check(**values) for values in result["checks"]]
    for check in checks:
        get_run_logger().info("%s", check, extra=SHOWN)
    show_table("monitoring", _markdown(result, checks), "The checks of the recorded feedback")
    address = run_address(result["run_id"])
    if address:
        show_link("monitoring run", address, "The run in MLflow")
        show_link("monitoring report", f"{address}/artifacts/{Path(result['report']).name}", "The report")
    return result


def _markdown(result: dict[str, Any], checks: list[Any]) -> str:
    rows = []
    for check in checks:
        figure = "-" if check.figure is None else f"{check.figure:.3f} [{check.low:.3f}, {check.high:.3f}]"
        verdict = f"**{check.status}**" if check.status == "alarm" else check.status
        rows.append((check.name, verdict, figure, f"{check.limit:g}", f"{check.n:,} {check.unit}"))
    table = TextTable(_COLUMNS, rows, left=2).markdown()
    return f"{result['model']}, {result['since']} to {result['until']}\n\n{table}"


def emit_alarm(result: dict[str, Any], flow_run: str) -> None:
    """Emit the event that the automation of `flows.deploy` reacts to, with the checks that raise an alarm."""
    alarms = [check for check in result["checks"] if check["status"] == "alarm"]
    payload = {
        "flow_run": flow_run,
        "summary": f"{result['model']}: alarm of {', '.join(check['name'] for check in alarms)}",
        **{name: result[name] for name in ("model", "since", "until", "run_id")},
        "alarms": alarms,
    }
    resource = {"prefect.resource.id": RESOURCE, "prefect.resource.name": "convrec monitor"}
    emit_event(EVENT, resource, payload=payload)
