"""The task that reads the online experiment, and ends it once the challenger is worse."""

from pathlib import Path

from prefect import task
from prefect.logging import get_run_logger

from convrec.project.table import TextTable
from tasks.artifacts import SHOWN, show_table
from tasks.command import RETRIES

BY = "flow experiment"


@task(task_run_name="read the experiment", **RETRIES)
def watch_experiment(feedback: str | None) -> str:
    """Return the result of the running experiment in one line, and end it if the challenger is worse.

    `feedback` is the URL of the feedback database; by default that of CONVREC_FEEDBACK_URL, or the project's. Raises
    `Unavailable` if a server is down.
    """
    import mlflow

    from convrec.registry.experiment import read_experiment, watch
    from convrec.registry.tracking import connect
    from convrec.service.feedback import open_store

    connect()
    client = mlflow.MlflowClient()
    experiment = read_experiment(client)
    if experiment is None or not experiment.is_running:
        return "no experiment is running"
    result = watch(client, open_store(Path(), feedback), experiment, stop_if_worse=True, by=BY)
    ended = f" Ended: {result.experiment.reason}." if result.experiment.ended else ""
    message = f"{result.headline}.{ended}"
    columns, *rows = result.rows()
    show_table("experiment", f"{message}\n\n{TextTable(columns, rows).markdown()}", "The online experiment")
    get_run_logger().info(message, extra=SHOWN)
    return message
