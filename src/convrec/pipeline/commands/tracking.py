"""`convrec tracking sync`: upload buffered journals."""

from pathlib import Path

from cyclopts import App

from convrec.pipeline.commands import REGISTRY, app
from convrec.project.errors import EXIT_UNAVAILABLE

tracking = App(
    name="tracking",
    help="Upload what was buffered while the tracking server was down (docs/tracking.md).\n\n"
    "Example: convrec tracking sync",
    group=REGISTRY,
)
app.command(tracking)


@tracking.command
def sync() -> int:
    """Upload the journals of runs whose process has ended, and end these runs.

    Example: convrec tracking sync

    Exit status: 0 all is uploaded, 75 something still waits.
    """
    from convrec.registry.tracking.delivery import upload_left
    from convrec.registry.tracking.journal import FOLDER, left_journals
    from convrec.registry.tracking.store import connect

    if not left_journals(FOLDER):
        print("Nothing to upload.")
        return 0
    connect()
    is_waiting = False
    for upload in upload_left(Path()):
        print(upload.text, flush=True)
        is_waiting |= upload.is_waiting
    return EXIT_UNAVAILABLE if is_waiting else 0
