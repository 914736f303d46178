"""`convrec experiment`: try a version on the users of the service."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from convrec.pipeline.commands import REGISTRY, AsJson, By, FeedbackUrl, Share, Version, app
from convrec.pipeline.commands.registry import print_table
from convrec.project.errors import InputError, Unavailable

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from convrec.registry.experiment_result import Result

experiment = App(
    name="experiment",
    help="Try a registered version on the users of the service, against the champion (docs/online-experiments.md).\n\n"
    "Example: convrec experiment status",
    group=REGISTRY,
)
app.command(experiment)


@experiment.command
def start(*, challenger: Version, share: Share = 0.5, by: By = None, as_json: AsJson = False) -> None:
    """Start an experiment; at most one is running.

    Example: convrec experiment start --challenger 4

    Args:
        challenger: The version to try.
        share: Share of the users with the challenger, below 1.
    """
    from convrec.registry.experiment import start_experiment

    client, who = _client(by)
    started = start_experiment(client, challenger, share, who)
    if as_json:
        print(started.to_json())
        return
    versions = f"version {started.challenger} against champion {started.champion}"
    print(f"Started experiment {started.id}: {versions}, for {started.share:.0%} of the users")


@experiment.command
def status(*, stop_if_worse: bool = False, by: By = None, url: FeedbackUrl = None, as_json: AsJson = False) -> None:
    """Print what the running or last experiment has found.

    Example: convrec experiment status --stop-if-worse

    Args:
        stop_if_worse: End it once the challenger is worse.
    """
    from convrec.registry.experiment import read_experiment
    from convrec.registry.experiment_result import watch
    from convrec.service.feedback import open_store

    client, who = _client(by)
    found = read_experiment(client)
    if found is None:
        print("null" if as_json else "No experiment was started: `convrec experiment start --help`")
        return
    _show(watch(client, open_store(Path(), url), found, stop_if_worse, who), as_json)


@experiment.command
def stop(*, reason: str = "", by: By = None, url: FeedbackUrl = None, as_json: AsJson = False) -> None:
    """End the running experiment, and record its result on the challenger.

    Example: convrec experiment stop --reason "enough answers"

    Args:
        reason: Recorded with the result.
    """
    from convrec.registry.experiment import end_experiment, read_experiment
    from convrec.registry.experiment_result import finish, read_result
    from convrec.service.feedback import open_store

    client, who = _client(by)
    reason = reason or f"stopped by {who}"
    try:
        found = read_experiment(client)
    except InputError:
        found = None
    if found is None or not found.is_running:
        end_experiment(client, None, reason, who)  # removes an unreadable tag, and reports that nothing is running
        return
    try:
        result = read_result(open_store(Path(), url), found)
    except (InputError, Unavailable) as error:  # an experiment must end even if its result cannot be read
        print(f"Ended without a result: {error}", file=sys.stderr)
        end_experiment(client, found.id, reason, who)
        return
    _show(finish(client, result, reason, who), as_json)


def _client(by: str | None) -> "tuple[MlflowClient, str]":
    """Return a client of the tracking server, and the name of the person."""
    import mlflow

    from convrec.registry.promote import user_name
    from convrec.registry.tracking import connect

    connect()
    return mlflow.MlflowClient(), by or user_name()


def _show(result: "Result", as_json: bool) -> None:
    if as_json:
        print(json.dumps({**result.to_json(), "headline": result.headline}))
        return
    columns, *rows = result.rows()
    print_table(columns, rows, right=(2, 3, 4, 5))
    print(result.headline)
    if result.experiment.ended:
        print(f"Ended at {result.experiment.ended}: {result.experiment.reason}")
