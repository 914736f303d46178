"""Locks of the project folder: one flow run at a time, and one process for each stage."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.project.errors import Unavailable

logger = logging.getLogger(__name__)

_FOLDER = Path(".dvc") / "tmp"


@contextmanager
def lock_folder(root: Path = Path()) -> Iterator[None]:
    """Lock the project folder for one flow run; the lock ends with the process.

    Raises `Unavailable` while another run holds it.
    """
    path = root / _FOLDER / "convrec.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise Unavailable(
                f"another run is using this folder (process {file.read()}); wait for its end, or use another folder: "
                "a second `git clone`, or `dvc exp run --temp` for an experiment"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def hold_stage(stage: str) -> None:
    """Wait until no other process runs this stage in this folder, then lock it until this process ends.

    The stage of a killed run may still be writing its last checkpoint.
    """
    path = _FOLDER / f"convrec.{stage}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("another process is still running %s in this folder; waiting for its end", stage)
        fcntl.flock(lock, fcntl.LOCK_EX)
