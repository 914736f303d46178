"""Tasks about the champion: register a version, promote it by promotion.yaml, and watch the online experiment."""

import mlflow
from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.logging import get_run_logger

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from convrec.project.table import TextTable
from convrec.registry import promote, versions
from convrec.registry.decisions import Decision, decision_markdown
from convrec.registry.experiment import read_experiment, watch
from convrec.registry.tracking import connect, shown_address
from convrec.service.feedback import open_store
from tasks.command import RETRIES, SHOWN
from tasks.server import gpu_slot


@task(task_run_name="register", **RETRIES)
def register_checkpoint(parent_run: str | None) -> str:
    """Register the current checkpoint as the challenger, once; return its version."""
    return str(versions.register(load_params(), Paths(), parent_run).version)


@task(task_run_name="decide on {version}", timeout_seconds=12 * 3600, **RETRIES)
def decide_promotion(version: str) -> Decision:
    """Decide on a version by promotion.yaml, carry the decision out, and show its gates."""
    with gpu_slot():
        get_run_logger().info("comparing version %s with the champion", version)
        decision = promote.promote(load_params(), Paths(), version)
    create_markdown_artifact(decision_markdown(decision), key="promotion", description="The promotion's gates")
    if address := shown_address(f"models/{versions.model_name()}/versions/{version}"):
        create_link_artifact(address, link_text=f"Version {version} in MLflow", key="version")
    get_run_logger().info("%s", decision.reason)
    return decision


@task(task_run_name="read the experiment", **RETRIES)
def watch_experiment() -> str:
    """Return the result of the running experiment in one line, and end it if the challenger is worse.

    Raises `Unavailable` if a server is down.
    """
    connect()
    client = mlflow.MlflowClient()
    experiment = read_experiment(client)
    if experiment is None or not experiment.is_running:
        return "no experiment is running"
    result = watch(client, open_store(), experiment, stop_if_worse=True, by="flow experiment")
    ended = f" Ended: {result.experiment.reason}." if result.experiment.ended else ""
    message = f"{result.headline}.{ended}"
    columns, *rows = result.rows()
    table = f"{message}\n\n{TextTable(columns, rows).markdown()}"
    create_markdown_artifact(table, key="experiment", description="The online experiment")
    get_run_logger().info(message, extra=SHOWN)
    return message
