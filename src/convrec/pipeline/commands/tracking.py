"""`convrec tracking sync`: upload buffered journals."""

import argparse
from pathlib import Path
from typing import Any

from convrec.pipeline.commands import add_command
from convrec.project.errors import EXIT_UNAVAILABLE


def add(commands: Any) -> None:
    """Add the subcommands of `convrec tracking`."""
    text = "upload what was buffered while the tracking server was down"
    tracking = add_command(commands, "tracking", None, text, "convrec tracking sync", "docs/tracking.md")
    subcommands = tracking.add_subparsers(dest="tracking_command", required=True, metavar="SUBCOMMAND")
    text = "upload the journals of runs whose process has ended, and end these runs"
    add_command(subcommands, "sync", _sync, text, "convrec tracking sync", "docs/tracking.md")


def _sync(_options: argparse.Namespace) -> int:
    """Print a line a run, and return 0, or 75 where something still waits."""
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
