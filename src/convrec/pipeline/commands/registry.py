"""`convrec promote`, `rollback`, `registry`, `experiment`, `tracking`: versions of the model, and runs."""

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from convrec.pipeline.commands import REGISTRY, AsJson, By, FeedbackUrl, Share, Version, add_group, app, project
from convrec.project.errors import EXIT_UNAVAILABLE, InputError, Unavailable
from convrec.project.table import TextTable
from convrec.project.text import plain

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from convrec.registry.experiment import Result

EXIT_NOT_PROMOTED = 3

registry = add_group("registry", REGISTRY, "List or register the versions of the model (docs/promotion.md).")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    TextTable(header, [list(map(plain, row)) for row in rows], left=len(header)).print(120)


@app.command(group=REGISTRY)
def promote(
    *,
    version: Version | None = None,
    by: By = None,
    approve: bool = False,
    again: bool = False,
    dry_run: bool = False,
    as_json: AsJson = False,
) -> int:
    """Compare a version with the champion, and promote it if it is better (docs/promotion.md).

    Example: convrec promote --dry-run

    Exit status: 0 promoted (or champion already), 3 refused or awaiting approval, 2 bad input.

    Args:
        version: Default: the challenger.
        approve: With --by: approve, if promotion.yaml requires approval.
        again: Also promote a version that was rolled back.
        dry_run: Decide without writing anything or moving the champion.
    """
    if approve and not by:
        raise InputError("--approve needs the person's name: give --by NAME")
    from rich.console import Console

    from convrec.registry import promote as module
    from convrec.registry.decisions import ALREADY, GATE_COLUMNS, gate_rows, skipped_gates

    logging.getLogger("convrec.classical").setLevel(logging.WARNING)  # its progress, of each answer that is timed
    decision = module.promote(*project(), version, by=by, approve=approve, again=again, dry_run=dry_run)
    if as_json:
        print(json.dumps(decision.to_json()))
    else:
        console = Console(highlight=False, markup=False)
        console.print(plain(decision.reason), soft_wrap=not console.is_terminal)  # a terminal's lines end at words
        if decision.gates:
            _print_table(GATE_COLUMNS, gate_rows(decision))
            if skipped := skipped_gates(decision):
                console.print(plain(skipped), soft_wrap=not console.is_terminal)
        if dry_run:
            print("Dry run: nothing was written or moved.")
    return 0 if decision.promoted or decision.status == ALREADY else EXIT_NOT_PROMOTED


@app.command(group=REGISTRY)
def rollback(*, reason: str = "", by: By = None, as_json: AsJson = False) -> None:
    """Restore the previous champion (docs/promotion.md).

    Args:
        reason: Recorded in the log and on the version.
    """
    from convrec.registry.moves import roll_back

    move = roll_back(*_client(by), plain(reason))
    if as_json:
        print(json.dumps(asdict(move)))
    else:
        print(f"Version {move.to_version} is the champion again; version {move.from_version} was rolled back")


@registry.command(name="list")
def list_all(*, as_json: AsJson = False) -> None:
    """Print one line per version, newest first."""
    from convrec.registry.promote import COLUMNS, list_versions
    from convrec.registry.tracking import shown_uri
    from convrec.registry.versions import model_name, other_models

    rows = list_versions()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    name, others = model_name(), other_models(model_name())
    if rows:
        print(f"Versions of {name}; {others}" if others else f"Versions of {name}")
        print("NDCG: on the test split, ± half the width of its 95 % interval; created: in UTC")
        for row in rows:
            row["created"], row["aliases"] = row["created"].removesuffix(" UTC"), row["aliases"].replace(",", "")
            if found := re.match(r"(\S+) \[(\S+), (\S+)\]", row["ndcg"]):
                mean, low, high = map(float, found.groups())
                row["ndcg"] = f"{mean:.3f} ±{(high - low) / 2:.3f}"
        _print_table(COLUMNS, [tuple(row[column] for column in COLUMNS) for row in rows])
    else:
        remedies = ["`python -m flows.train`, or `convrec registry register`", others]
        print(f"No version of {name} is registered yet at {shown_uri()}: {'; '.join(filter(None, remedies))}")


@registry.command
def register(*, stage: Literal["sft", "rank_grpo"] = "rank_grpo") -> None:
    """Register a trained checkpoint of the workspace as the challenger.

    Args:
        stage: The training whose model is registered.
    """
    from convrec.registry import versions

    version = versions.register(*project(), None, stage)
    print(f"{versions.model_name()} version {version.version}: {', '.join(version.aliases) or 'no alias'}")


experiment = add_group(
    "experiment",
    REGISTRY,
    "Try a registered version on the users of the service, against the champion (docs/online-experiments.md).",
)


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
    from convrec.registry.experiment import read_experiment, watch
    from convrec.service.feedback import open_store

    client, who = _client(by)
    found = read_experiment(client)
    if found is None:
        print("null" if as_json else "No experiment was started: `convrec experiment start --help`")
        return
    _show(watch(client, open_store(url), found, stop_if_worse, who), as_json)


@experiment.command
def stop(*, reason: str = "", by: By = None, url: FeedbackUrl = None, as_json: AsJson = False) -> None:
    """End the running experiment, and record its result on the challenger.

    Example: convrec experiment stop --reason "enough answers"

    Args:
        reason: Recorded with the result.
    """
    from convrec.registry.experiment import end_experiment, finish, read_experiment, read_result
    from convrec.service.feedback import open_store

    client, who = _client(by)
    reason = plain(reason) or f"stopped by {who}"
    found = read_experiment(client)
    if found is None or not found.is_running:
        raise InputError("no experiment is running; `convrec experiment start` starts one")
    try:
        result = read_result(open_store(url), found)
    except (InputError, Unavailable) as error:  # an experiment must end even if its result cannot be read
        print(f"Ended without a result: {error}", file=sys.stderr)
        end_experiment(client, found.id, reason, who)
        return
    _show(finish(client, result, reason, who), as_json)


def _client(by: str | None) -> "tuple[MlflowClient, str]":
    """Return a client of the tracking server, and the name of the person."""
    import mlflow

    from convrec.registry.tracking import connect, user_name

    connect()
    return mlflow.MlflowClient(), plain(by or user_name())


def _show(result: "Result", as_json: bool) -> None:
    if as_json:
        print(json.dumps({**result.to_json(), "headline": result.headline}))
        return
    columns, *rows = result.rows()
    _print_table(columns, rows)
    print(plain(result.headline))
    if result.experiment.ended:
        print(plain(f"Ended at {result.experiment.ended}: {result.experiment.reason}"))


tracking = add_group(
    "tracking", REGISTRY, "Upload what was buffered while the tracking server was down (docs/tracking.md)."
)


@tracking.command
def sync() -> int:
    """Upload the journals of runs whose process has ended, and end these runs.

    Exit status: 0 all is uploaded, 75 something still waits.
    """
    from convrec.registry.tracking.journal import upload_left
    from convrec.registry.tracking.store import connect

    connect()
    waiting = []
    for text, is_waiting in upload_left(Path()):
        print(text, flush=True)
        waiting.append(is_waiting)
    if not waiting:
        print("Nothing to upload.")
    return EXIT_UNAVAILABLE if any(waiting) else 0
