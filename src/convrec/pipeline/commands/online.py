"""`convrec experiment`: try a version on the users of the service."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.pipeline.commands import add_command, share
from convrec.pipeline.commands.registry import check_number, print_table
from convrec.project.errors import InputError, Unavailable

if TYPE_CHECKING:
    from convrec.registry.experiment import Result

_PAGE = "docs/online-experiments.md"
_FEEDBACK = "URL of the feedback database; default: CONVREC_FEEDBACK_URL, or feedback/feedback.db"


def add(commands: Any) -> None:
    """Add the command."""
    text = "try a registered version on the users of the service, against the champion"
    experiment = add_command(commands, "experiment", None, text, "convrec experiment status", _PAGE)
    parts = experiment.add_subparsers(dest="experiment_command", metavar="SUBCOMMAND", required=True)
    text = "start an experiment; at most one is running"
    start = add_command(parts, "start", _start, text, "convrec experiment start --challenger 4", _PAGE)
    start.add_argument("--challenger", metavar="N", required=True, help="the version to try")
    start.add_argument(
        "--share",
        type=share,
        default=0.5,
        metavar="S",
        help="share of the users with the challenger, below 1; default: %(default)s",
    )
    text = "print what the running or last experiment has found"
    status = add_command(parts, "status", _status, text, "convrec experiment status --stop-if-worse", _PAGE)
    status.add_argument("--stop-if-worse", action="store_true", help="end it once the challenger is worse")
    text = "end the running experiment, and record its result on the challenger"
    stop = add_command(parts, "stop", _stop, text, 'convrec experiment stop --reason "enough answers"', _PAGE)
    stop.add_argument("--reason", default="", metavar="TEXT", help="recorded with the result")
    for command in (start, status, stop):
        command.add_argument("--by", metavar="NAME", help="default: the user's name")
        command.add_argument("--json", action="store_true", help="print JSON")
    for command in (status, stop):
        command.add_argument("--feedback", metavar="URL", help=_FEEDBACK)


def _start(options: argparse.Namespace) -> None:
    check_number("--challenger", options.challenger)
    import mlflow

    from convrec.registry.experiment import start_experiment
    from convrec.registry.tracking import connect, user_name

    connect()
    by = options.by or user_name()
    started = start_experiment(mlflow.MlflowClient(), options.challenger, options.share, by)
    if options.json:
        print(started.to_json())
        return
    versions = f"version {started.challenger} against champion {started.champion}"
    print(f"Started experiment {started.id}: {versions}, for {started.share:.0%} of the users")


def _status(options: argparse.Namespace) -> None:
    import mlflow

    from convrec.registry.experiment import read_experiment, watch
    from convrec.registry.tracking import connect, user_name
    from convrec.service.feedback import open_store

    connect()
    client = mlflow.MlflowClient()
    experiment = read_experiment(client)
    if experiment is None:
        print("null" if options.json else "No experiment was started: `convrec experiment start --help`")
        return
    result = watch(
        client, open_store(Path(), options.feedback), experiment, options.stop_if_worse, options.by or user_name()
    )
    _show(result, options.json)


def _stop(options: argparse.Namespace) -> None:
    import mlflow

    from convrec.registry.experiment import end_experiment, finish, read_experiment, read_result
    from convrec.registry.tracking import connect, user_name
    from convrec.service.feedback import open_store

    connect()
    client, by = mlflow.MlflowClient(), options.by or user_name()
    reason = options.reason or f"stopped by {by}"
    experiment = read_experiment(client)
    if experiment is None or not experiment.is_running:
        raise InputError("no experiment is running; `convrec experiment start` starts one")
    try:
        result = read_result(open_store(Path(), options.feedback), experiment)
    except (InputError, Unavailable) as error:  # an experiment must end even if its result cannot be read
        print(f"Ended without a result: {error}", file=sys.stderr)
        end_experiment(client, experiment.id, reason, by)
        return
    _show(finish(client, result, reason, by), options.json)


def _show(result: "Result", as_json: bool) -> None:
    if as_json:
        print(json.dumps({**result.to_json(), "headline": result.headline}))
        return
    columns, *rows = result.rows()
    print_table(columns, rows, right=(2, 3, 4, 5))
    print(result.headline)
    if result.experiment.ended:
        print(f"Ended at {result.experiment.ended}: {result.experiment.reason}")
