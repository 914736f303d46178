"""`convrec promote`, `convrec rollback`, `convrec registry`: which registered version is the champion."""

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

from convrec.pipeline.commands import add_command, whole_number
from convrec.project.errors import InputError

EXIT_NOT_PROMOTED = 3
_PAGE = "docs/promotion.md"


def add(commands: Any) -> None:
    """Add the commands."""
    text = "compare a version with the champion, and promote it if it is better"
    promote = add_command(commands, "promote", _promote, text, "convrec promote --dry-run", _PAGE)
    promote.epilog = (
        f"{promote.epilog}. Exit status: 0 promoted (or champion already), 3 refused or awaiting approval, 2 bad input."
    )
    promote.add_argument("--version", metavar="N", help="default: the challenger")
    promote.add_argument("--by", metavar="NAME", help="name of the person who decides; default: the user's name")
    verdict = promote.add_mutually_exclusive_group()
    verdict.add_argument(
        "--approve", action="store_true", help="with --by: approve, if promotion.yaml requires approval"
    )
    verdict.add_argument("--reject", action="store_true", help="with --by: reject a version that awaits approval")
    promote.add_argument("--reason", default="", metavar="TEXT", help="reason for --reject")
    promote.add_argument("--again", action="store_true", help="also promote a version that was rolled back")
    promote.add_argument(
        "--dry-run", action="store_true", help="decide without writing anything or moving the champion"
    )
    rollback = add_command(commands, "rollback", _rollback, "restore the previous champion", "convrec rollback", _PAGE)
    rollback.add_argument("--to", metavar="N", help="an earlier champion; default: the previous one")
    rollback.add_argument("--reason", default="", metavar="TEXT", help="recorded in the log and on the version")
    rollback.add_argument("--by", metavar="NAME", help="default: the user's name")
    text = "list, register or prune the versions of the model"
    registry = add_command(commands, "registry", None, text, "convrec registry list", _PAGE)
    parts = registry.add_subparsers(dest="registry_command", metavar="SUBCOMMAND", required=True)
    listing = add_command(parts, "list", _list, "print one line per version, newest first", "convrec registry list")
    text = "register a trained checkpoint of the workspace as the challenger"
    register = add_command(parts, "register", _register, text, "convrec registry register")
    register.add_argument("--stage", choices=("sft", "rank_grpo"), default="rank_grpo")
    text = "remove old versions; without --yes, only list them"
    prune = add_command(parts, "prune", _prune, text, "convrec registry prune --keep 5")
    prune.add_argument(
        "--keep", type=whole_number(1), required=True, metavar="N", help="number of newest versions to keep"
    )
    prune.add_argument("--yes", action="store_true", help="remove them")
    for command in (promote, rollback, listing, prune):
        command.add_argument("--json", action="store_true", help="print JSON")


def _promote(options: argparse.Namespace) -> int:
    check_number("--version", options.version)
    if (options.approve or options.reject) and not options.by:
        raise InputError("--approve and --reject need the person's name: give --by NAME")
    if options.reason and not options.reject:
        raise InputError("--reason needs --reject")
    for name in ("dry_run", "again"):
        if options.reject and getattr(options, name):
            raise InputError(f"--{name.replace('_', '-')}: not with --reject")
    from convrec.project.config.params import load_params
    from convrec.project.paths import Paths
    from convrec.registry.decisions import ALREADY
    from convrec.registry.promote import promote, reject

    if options.reject:
        decision = reject(Paths(), options.version, by=options.by, reason=options.reason)
    else:
        decision = promote(
            load_params(),
            Paths(),
            options.version,
            by=options.by,
            approve=options.approve,
            again=options.again,
            dry_run=options.dry_run,
        )
    if options.json:
        print(json.dumps(decision.to_json()))
    else:
        _print_decision(decision)
        if options.dry_run:
            print("Dry run: nothing was written or moved.")
    return 0 if decision.promoted or decision.status == ALREADY else EXIT_NOT_PROMOTED


def _print_decision(decision: Any) -> None:
    from convrec.registry.decisions import GATE_COLUMNS, gate_rows, headline

    if decision.gates:
        print_table(GATE_COLUMNS, gate_rows(decision), right=(1,))
    line = headline(decision)
    print(f"{line[0].upper()}{line[1:]}")


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


def _rollback(options: argparse.Namespace) -> int:
    check_number("--to", options.to)
    from dataclasses import asdict

    from convrec.project.paths import Paths
    from convrec.registry.promote import rollback

    move = rollback(Paths(), options.to, by=options.by, reason=options.reason)
    if options.json:
        print(json.dumps(asdict(move)))
    else:
        print(f"Version {move.to_version} is the champion again; version {move.from_version} was rolled back")
    return 0


def _list(options: argparse.Namespace) -> int:
    from convrec.registry.promote import COLUMNS, list_versions

    rows = list_versions()
    if options.json:
        print(json.dumps(rows, ensure_ascii=False))
    elif rows:
        print_table(COLUMNS, [tuple(row[name] for name in COLUMNS) for row in rows])
    else:
        from convrec.registry.tracking import shown_uri

        print(f"No version is registered yet at {shown_uri()}: `python -m flows.train`, or `convrec registry register`")
    return 0


def _register(options: argparse.Namespace) -> int:
    from convrec.project.config.params import load_params
    from convrec.project.paths import Paths
    from convrec.registry.versions import MODEL_NAME, register

    version = register(load_params(), Paths(), None, options.stage)
    print(f"{MODEL_NAME} version {version.version}: {', '.join(version.aliases) or 'no alias'}")
    return 0


def _prune(options: argparse.Namespace) -> int:
    from convrec.registry.promote import prune

    old = prune(options.keep, "convrec registry prune", options.yes)
    if options.json:
        print(json.dumps(old))
    elif not old:
        print("No version to remove.")
    else:
        print(f"{'Removed' if options.yes else 'Would be removed with --yes'}: {', '.join(old)}")
    return 0


def check_number(name: str, value: str | None) -> None:
    """Raise `InputError` unless the value of option `name` is missing or the number of a version."""
    if value is not None and not re.fullmatch("[1-9][0-9]{0,8}", value):
        raise InputError(f"{name} {value:.40}: give the number of a version, as `convrec registry list` shows it")
