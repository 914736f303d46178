"""`convrec promote`, `convrec rollback`, `convrec registry`: which registered version is the champion."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from cyclopts import App
from cyclopts.types import PositiveInt

from convrec.pipeline.commands import REGISTRY, AsJson, By, Version, app
from convrec.project.errors import InputError

EXIT_NOT_PROMOTED = 3

registry = App(
    name="registry",
    help="List, register or prune the versions of the model (docs/promotion.md).\n\nExample: convrec registry list",
    group=REGISTRY,
)
app.command(registry)


@app.command(group=REGISTRY)
def promote(
    *,
    version: Version | None = None,
    by: By = None,
    approve: bool = False,
    reject: bool = False,
    reason: str = "",
    again: bool = False,
    fresh: bool = False,
    dry_run: bool = False,
    as_json: AsJson = False,
) -> int:
    """Compare a version with the champion, and promote it if it is better (docs/promotion.md).

    Example: convrec promote --dry-run

    Exit status: 0 promoted (or champion already), 3 refused or awaiting approval, 2 bad input.

    Args:
        version: Default: the challenger.
        approve: With --by: approve, if promotion.yaml requires approval.
        reject: With --by: reject a version that awaits approval.
        reason: Reason for --reject.
        again: Also promote a version that was rolled back.
        fresh: Repeat the measurements of the last decision.
        dry_run: Decide without writing anything or moving the champion.
    """
    if (approve or reject) and not by:
        raise InputError("--approve and --reject need the person's name: give --by NAME")
    if reason and not reject:
        raise InputError("--reason needs --reject")
    if reject and (approve or again or fresh or dry_run):
        raise InputError("--reject: not with --approve, --again, --fresh or --dry-run")
    from convrec.project.config.params import load_params
    from convrec.project.paths import Paths
    from convrec.registry import promote as module
    from convrec.registry.decisions import ALREADY, gate_rows, headline

    if reject and by:
        decision = module.reject(Paths(), version, by=by, reason=reason)
    else:
        options = {"approve": approve, "again": again, "fresh": fresh, "dry_run": dry_run}
        decision = module.promote(load_params(), Paths(), version, by=by, **options)
    if as_json:
        print(json.dumps(decision.to_json()))
    else:
        if decision.gates:
            print_table(("gate", "figure", "limit", "outcome", "detail"), gate_rows(decision), right=(1,))
        line = headline(decision)
        print(f"{line[0].upper()}{line[1:]}")
        if dry_run:
            print("Dry run: nothing was written or moved.")
    return 0 if decision.promoted or decision.status == ALREADY else EXIT_NOT_PROMOTED


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> None:
    """Print a table; the columns numbered in `right` are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, width=120).print(table)


@app.command(group=REGISTRY)
def rollback(*, to: Version | None = None, reason: str = "", by: By = None, as_json: AsJson = False) -> None:
    """Restore the previous champion (docs/promotion.md).

    Example: convrec rollback

    Args:
        to: An earlier champion; default: the previous one.
        reason: Recorded in the log and on the version.
    """
    from convrec.project.paths import Paths
    from convrec.registry import promote as module

    move = module.rollback(Paths(), to, by=by, reason=reason)
    if as_json:
        print(json.dumps(asdict(move)))
    else:
        print(f"Version {move.to_version} is the champion again; version {move.from_version} was rolled back")


@registry.command(name="list")
def list_all(*, as_json: AsJson = False) -> None:
    """Print one line per version, newest first.

    Example: convrec registry list
    """
    from convrec.registry.listing import COLUMNS, list_versions

    rows = list_versions()
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
    elif rows:
        print_table(COLUMNS, [tuple(row[name] for name in COLUMNS) for row in rows])
    else:
        from convrec.registry.tracking import shown_uri

        print(f"No version is registered yet at {shown_uri()}: `python -m flows.train`, or `convrec registry register`")


@registry.command
def register(*, stage: Literal["sft", "rank_grpo"] = "rank_grpo") -> None:
    """Register a trained checkpoint of the workspace as the challenger.

    Example: convrec registry register

    Args:
        stage: The training whose model is registered.
    """
    from convrec.project.config.params import load_params
    from convrec.project.paths import Paths
    from convrec.registry import versions

    version = versions.register(load_params(), Paths(), None, stage)
    print(f"{versions.MODEL_NAME} version {version.version}: {', '.join(version.aliases) or 'no alias'}")


@registry.command
def prune(*, keep: PositiveInt, yes: bool = False, as_json: AsJson = False) -> None:
    """Remove old versions; without --yes, only list them.

    Example: convrec registry prune --keep 5

    Args:
        keep: Number of newest versions to keep.
        yes: Remove them.
    """
    from convrec.registry import listing

    fates = listing.prune(keep, "convrec registry prune", yes)
    if as_json:
        print(json.dumps([asdict(fate) for fate in fates]))
        return
    if not fates:
        print("No version is registered: nothing to prune.")
        return
    gone = "removed" if yes else "would go"
    print_table(("version", "", "why"), [(f.version, "stays" if f.stays else gone, f.why) for f in fates])
    if not yes:
        print("Dry run: nothing was removed; add --yes.")
