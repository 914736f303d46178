"""Tasks about the champion: register, compare, promote by promotion.yaml, roll back, and the online experiment."""

from pathlib import Path
from typing import Any

import mlflow
from prefect import task
from prefect.logging import get_run_logger

from convrec.pipeline.commands.registry import EXIT_NOT_PROMOTED
from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from convrec.registry import moves, versions
from convrec.registry.decisions import Decision, decision_markdown, headline
from convrec.registry.experiment import read_experiment, watch
from convrec.registry.tracking import connect, shown_address, user_name
from convrec.service.feedback import open_store
from tasks.artifacts import SHOWN, show_link, show_table
from tasks.command import RETRIES, ask_convrec

_TIMEOUT_HOURS = 12.0


@task(task_run_name="register", **RETRIES)
def register_checkpoint(parent_run: str | None) -> str:
    """Register the current checkpoint as the challenger, once; return its version."""
    return str(versions.register(load_params(), Paths(), parent_run).version)


@task(task_run_name="evaluate champion and challenger", **RETRIES)
def evaluate_versions() -> dict[str, dict[str, Any]]:
    """Return the results of `convrec evaluate` for the champion and its possible replacement, by name.

    Their lists are constrained to the catalog. Raises `InputError` if there is no champion.
    """
    compared = versions.compared_versions()
    chosen = [part for uri in compared.values() for part in ("--model", uri)]
    results = ask_convrec("evaluate", "--split", "test", "--constrained", *chosen, timeout_hours=_TIMEOUT_HOURS)
    return dict(zip(compared, results, strict=True))


@task(task_run_name="decide on {version}", **RETRIES)
def decide_promotion(version: str | None, again: bool = False, approved_by: str | None = None) -> Decision:
    """Decide on a version by promotion.yaml, carry the decision out, and show its gates."""
    options = ["--version", version] if version else []
    options += ["--again"] if again else []
    options += ["--approve", "--by", approved_by] if approved_by else []
    (found,) = ask_convrec("promote", *options, timeout_hours=_TIMEOUT_HOURS, success=(0, EXIT_NOT_PROMOTED))
    return _show(Decision.from_json(found))


def _show(decision: Decision) -> Decision:
    show_table("promotion", decision_markdown(decision), "The promotion's gates")
    if address := shown_address(f"models/{versions.MODEL_NAME}/versions/{decision.challenger}"):
        show_link("version", address, f"Version {decision.challenger} in MLflow")
    get_run_logger().info("%s", headline(decision))
    return decision


@task(task_run_name="roll back")
def roll_back(by: str | None, reason: str) -> str:
    """Roll the champion back; return a message."""
    connect()
    move = moves.roll_back(mlflow.MlflowClient(), by or user_name(), reason)
    message = f"Version {move.to_version} is the champion again; version {move.from_version} was rolled back"
    show_table("rollback", f"{message} by {move.by}. {move.reason}\n", "Rollback of the champion")
    return message


@task(task_run_name="read the experiment", **RETRIES)
def watch_experiment(feedback: str | None) -> str:
    """Return the result of the running experiment in one line, and end it if the challenger is worse.

    `feedback` is the URL of the feedback database; by default that of CONVREC_FEEDBACK_URL, or the project's. Raises
    `Unavailable` if a server is down.
    """
    connect()
    client = mlflow.MlflowClient()
    experiment = read_experiment(client)
    if experiment is None or not experiment.is_running:
        return "no experiment is running"
    result = watch(client, open_store(Path(), feedback), experiment, stop_if_worse=True, by="flow experiment")
    ended = f" Ended: {result.experiment.reason}." if result.experiment.ended else ""
    message = f"{result.headline}.{ended}"
    columns, *rows = result.rows()
    show_table("experiment", f"{message}\n\n{TextTable(columns, rows).markdown()}", "The online experiment")
    get_run_logger().info(message, extra=SHOWN)
    return message
