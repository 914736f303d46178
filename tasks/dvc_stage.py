"""One DVC stage as one Prefect task.

`python -m tasks.dvc_stage STAGE` runs one without a flow, for a scheduler, with the exit status of the stage.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import networkx
import psutil
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc.rwlock import RWLOCK_FILE, RWLockFileCorruptedError, RWLockFileFormatError
from dvc.scm import SCMError
from dvc.stage.exceptions import StageCmdFailedError
from dvc.utils.serialize import ParseError
from dvc.utils.strictyaml import YAMLValidationError
from prefect import task

from convrec.project.atomic import restored_on_error
from convrec.project.errors import InputError, Reported, outside_cause
from convrec.project.redaction import redact
from convrec.registry.tracking import PARENT_VARIABLE
from convrec.training.launch import RETRAIN
from tasks.command import RETRIES, StageFailed, failure, follow
from tasks.server import gpu_slot

_STATUS = re.compile(r"exited with (-?\d+)$")  # DVC's own exit status only says that a stage failed


class Stage(NamedTuple):
    """A stage of dvc.yaml, with its `meta.gpu` and `meta.timeout_hours`."""

    name: str
    gpu: bool
    timeout_hours: float | None


def stages() -> list[Stage]:
    """Return the stages of dvc.yaml in the order of its graph.

    Raises `InputError` if there is no git or DVC repository, or dvc.yaml or dvc.lock is damaged.
    """
    try:
        opened = Repo(".")
    except (NotDvcRepoError, SCMError) as error:
        message = "run in a clone of the project (or run `git init`, if it was unpacked from an archive)"
        raise InputError(f"{str(error).partition(chr(10))[0]}; {message}") from None
    with opened as repo:
        try:
            graph = repo.index.graph  # edges point from a stage to what it depends on
        except (ParseError, YAMLValidationError) as error:
            message = " ".join(str(error).split())
            raise InputError(f"{message}; correct the file, or restore it (`git checkout`)") from None
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=lambda stage: stage.addressing))
        return [
            Stage(stage.name, bool((stage.meta or {}).get("gpu")), (stage.meta or {}).get("timeout_hours"))
            for stage in order
            if hasattr(stage, "name")
        ]


def choose_stages(names: list[str] | None = None, force: list[str] | None = None) -> list[Stage]:
    """Return the stages with these names, or all if `names` is None; raises `InputError` for an unknown name."""
    found = stages()
    known = [stage.name for stage in found]
    for parameter, given in (("stages", names), ("force", force)):
        for name in given or ():
            if name not in known:
                raise InputError(f"{parameter}: {name!r} is not a stage of dvc.yaml; give one of {', '.join(known)}")
    return [stage for stage in found if names is None or stage.name in names]


def needs_run(stage: str) -> bool:
    """Return whether DVC reports changed inputs, parameters, command or outputs."""
    with _opened() as repo:
        return bool(repo.status(targets=[stage], with_deps=False))


@contextmanager
def _opened() -> Iterator[Repo]:
    """Open the repository. Raises `InputError` for a damaged list of readers and writers."""
    for name in ("dvc", "dvc_data"):  # errors are reported here; DVC's progress bars would break the flow's live line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with Repo(".", _wait_for_lock=True) as repo:
        holders = Path(str(repo.tmp_dir), RWLOCK_FILE)
        # DVC takes any process that has the id of a holder for it, and reports that the path "is busy". All holders are
        # gone if their list is older than this machine or container.
        if holders.exists() and holders.stat().st_mtime < psutil.Process(1).create_time():
            holders.unlink()
        try:
            yield repo
        except (DvcException, UnicodeDecodeError) as error:
            damage = RWLockFileCorruptedError | RWLockFileFormatError | UnicodeDecodeError
            if isinstance(error, damage) or isinstance(error.__cause__, damage):
                path = os.path.relpath(holders)
                raise InputError(f"{path}: damaged; remove it while no DVC process works here") from None
            raise


def reproduce(stage: str, force: bool = False, variables: Mapping[str, str] | None = None) -> int:
    """Do `dvc repro --single-item STAGE`; return the exit status of the stage's command, 128 + N for signal N.

    The command has the environment of this process and `variables`. It waits while another DVC process holds the
    folder's lock. Raises `InputError` if a file that the stage reads is missing, `Unavailable` if another DVC
    process uses the stage's files, and `StageFailed` if DVC itself fails.
    """
    try:
        with _opened() as repo, restored_on_error(Path("dvc.lock")):
            repo.reproduce(stage, single_item=True, force=force, run_env=variables)
        return 0
    except DvcException as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError) and cause.filename:
            raise InputError(
                f"{stage}: {os.path.relpath(cause.filename)}: no such file or folder, but the stage reads it; run the "
                "stage that makes it, copy it there, or correct its name in params.yaml"
            ) from None
        if isinstance(cause, StageCmdFailedError) and (found := _STATUS.search(str(cause))):
            status = int(found.group(1))
            return status if status >= 0 else 128 - status
        if outside := outside_cause(error):
            raise type(outside)(f"{stage}: dvc repro: {outside}") from None
        raise StageFailed(f"{stage}: dvc repro: {error}{f': {cause}' if cause else ''}") from None


@task(task_run_name="{stage.name}", **RETRIES)
def run_stage(stage: Stage, force: bool, parent_run: str) -> None:
    """Bring one stage up to date; GPU stages wait for the server's limit `gpu`. Raises `StageFailed`."""
    variables = {PARENT_VARIABLE: parent_run, **({RETRAIN: "1"} if force else {})}
    with gpu_slot(stage.gpu):
        status = follow(stage.name, partial(reproduce, stage.name, force), stage.timeout_hours, variables)
    if status:
        raise failure(stage.name, status)


if __name__ == "__main__":
    try:
        sys.exit(reproduce(sys.argv[1]))
    except Reported as error:
        sys.stderr.write(f"{redact(str(error))}\n")
        sys.exit(error.status)
