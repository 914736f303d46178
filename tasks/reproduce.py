"""`python -m tasks.reproduce STAGE [--force]`: `dvc repro` of one stage, with the exit status of the stage's command.

It waits while another DVC process holds the folder's lock, and names the process that uses the stage's files.
"""

import logging
import os
import re
import sys
from typing import Any

import psutil

from convrec.errors import EXIT_BAD_INPUT, exit_status, outside_cause

_STATUS = re.compile(r"exited with (-?\d+)$")  # DVC's own exit status only says that a stage failed


def _forget_dead_holders() -> None:
    """Remove killed processes from DVC's list of readers and writers (the rwlock file).

    DVC removes dead holders too, but mistakes any process that has reused their id for the holder, and reports that the
    path "is busy". A process that started after the last change of the list cannot be a holder.
    """
    from dvc.repo import Repo
    from dvc.rwlock import RWLOCK_FILE, _edit_rwlock

    with Repo() as repo:
        path = os.path.join(str(repo.tmp_dir), RWLOCK_FILE)
        if not os.path.exists(path):
            return
        hardlink = repo.config["core"].get("hardlink_lock", False)
        with _edit_rwlock(repo.tmp_dir, repo.fs, hardlink) as holders:
            changed = os.path.getmtime(path)

            def holds(info: dict[str, Any]) -> bool:
                try:
                    return psutil.Process(info["pid"]).create_time() <= changed
                except psutil.NoSuchProcess:
                    return False

            readers = {name: [info for info in infos if holds(info)] for name, infos in holders["read"].items()}
            holders["read"] = {name: infos for name, infos in readers.items() if infos}
            holders["write"] = {name: info for name, info in holders["write"].items() if holds(info)}


def main() -> int:
    """Return the exit status of the stage's command, 128 + N for signal N.

    The status is 2 if a file that the stage reads is missing, 75 if another DVC process uses the stage's files, and 1
    if DVC itself fails.
    """
    from dvc.cli import parse_args
    from dvc.exceptions import DvcException
    from dvc.stage.exceptions import StageCmdFailedError

    logging.getLogger("dvc").setLevel(logging.CRITICAL)  # the task reports errors itself
    options = parse_args(["--wait-for-lock", "repro", "--single-item", *sys.argv[1:]])
    try:
        _forget_dead_holders()
        return options.func(options).do_run()
    except DvcException as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError) and cause.filename:
            missing = os.path.relpath(cause.filename)
            sys.stderr.write(
                f"{missing}: no such file or folder, but the stage reads it; run the stage that makes it, copy it "
                "there, or correct its name in params.yaml\n"
            )
            return EXIT_BAD_INPUT
        found = _STATUS.search(str(cause)) if isinstance(cause, StageCmdFailedError) else None
        if found is None:
            outside = outside_cause(error)
            sys.stderr.write(f"dvc repro: {outside or error}{f': {cause}' if cause and not outside else ''}\n")
            return (outside and exit_status(outside)) or 1
        status = int(found.group(1))
        return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
