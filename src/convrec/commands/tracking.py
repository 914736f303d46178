"""`convrec tracking sync`: upload buffered journals."""

import argparse
from pathlib import Path
from typing import Any

from convrec.commands import add_command
from convrec.errors import EXIT_UNAVAILABLE


def add(commands: Any) -> None:
    """Add the subcommands of `convrec tracking`."""
    text = "upload what was buffered while the tracking server was down"
    tracking = add_command(commands, "tracking", None, text, "convrec tracking sync", "docs/tracking.md")
    subcommands = tracking.add_subparsers(dest="tracking_command", required=True, metavar="SUBCOMMAND")
    text = "upload the journals of runs whose process has ended, and end these runs"
    add_command(subcommands, "sync", _sync, text, "convrec tracking sync", "docs/tracking.md")


def _sync(_options: argparse.Namespace) -> int:
    """Print a line a run, and return 0, or 75 where something still waits."""
    from convrec.tracking.delivery import replay_left
    from convrec.tracking.journal import FOLDER, REFUSED, left_journals
    from convrec.tracking.store import connect

    if not left_journals(FOLDER):
        print("Nothing to upload.")
        return 0
    connect()
    waiting = refused = 0
    for replayed in replay_left(Path()):
        print(replayed, flush=True)
        waiting += replayed.problem is not None
        refused += replayed.sent.get("refused", 0)
    if refused:
        print(f"{refused} records were refused: {FOLDER / REFUSED} has them, with the reasons")
    return EXIT_UNAVAILABLE if waiting else 0
