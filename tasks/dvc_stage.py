"""One DVC stage as one Prefect task.

`python -m tasks.dvc_stage STAGE` runs one without a flow, for a scheduler, with the exit status of the stage.
"""

import logging
import os
import re
import sys
from typing import Any, NamedTuple

import networkx
import psutil
from dvc.exceptions import DvcException, NotDvcRepoError
from dvc.repo import Repo
from dvc.rwlock import RWLOCK_FILE, _edit_rwlock
from dvc.scm import SCMError
from dvc.stage.exceptions import StageCmdFailedError
from dvc.utils.serialize import ParseError
from dvc.utils.strictyaml import YAMLValidationError
from prefect import task
from prefect.logging import get_run_logger

from convrec.project.errors import EXIT_BAD_INPUT, InputError, Unavailable, exit_status, outside_cause
from convrec.registry.tracking import PARENT_VARIABLE
from convrec.training.launch import RETRAIN
from tasks.command import RETRIES, BadInput, StageFailed, StageInterrupted, failure, follow
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


def choose_stages(names: list[str] | None, force: list[str] | None) -> list[Stage]:
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
    with Repo(".", _wait_for_lock=True) as repo:
        return bool(repo.status(targets=[stage], with_deps=False))


def _forget_dead_holders(repo: Repo) -> None:
    """Remove killed processes from DVC's list of readers and writers (the rwlock file).

    DVC removes dead holders too, but mistakes any process that has reused their id for the holder, and reports that the
    path "is busy". A process that started after the last change of the list cannot be a holder.
    """
    path = os.path.join(str(repo.tmp_dir), RWLOCK_FILE)
    if not os.path.exists(path):
        return
    with _edit_rwlock(repo.tmp_dir, repo.fs, repo.config["core"].get("hardlink_lock", False)) as holders:
        changed = os.path.getmtime(path)

        def holds(info: dict[str, Any]) -> bool:
            try:
                return psutil.Process(info["pid"]).create_time() <= changed
            except psutil.NoSuchProcess:
                return False

        readers = {name: [info for info in infos if holds(info)] for name, infos in holders["read"].items()}
        holders["read"] = {name: infos for name, infos in readers.items() if infos}
        holders["write"] = {name: info for name, info in holders["write"].items() if holds(info)}


def reproduce(stage: str, force: bool = False) -> int:
    """Do `dvc repro --single-item STAGE`; return the exit status of the stage's command, 128 + N for signal N.

    It waits while another DVC process holds the folder's lock. Raises `BadInput` if a file that the stage reads is
    missing, `StageInterrupted` if another DVC process uses the stage's files, and `StageFailed` if DVC itself fails.
    """
    try:
        with Repo(".", _wait_for_lock=True) as repo:
            _forget_dead_holders(repo)
            repo.reproduce(stage, single_item=True, force=force)
        return 0
    except DvcException as error:
        cause = error.__cause__
        if isinstance(cause, FileNotFoundError) and cause.filename:
            raise BadInput(
                f"{stage}: {os.path.relpath(cause.filename)}: no such file or folder, but the stage reads it; run the "
                "stage that makes it, copy it there, or correct its name in params.yaml",
                EXIT_BAD_INPUT,
            ) from None
        found = _STATUS.search(str(cause)) if isinstance(cause, StageCmdFailedError) else None
        if found is not None:
            status = int(found.group(1))
            return status if status >= 0 else 128 - status
        outside = outside_cause(error)
        message = f"{stage}: dvc repro: {outside or error}{f': {cause}' if cause and not outside else ''}"
        kind = StageInterrupted if isinstance(outside, Unavailable) else StageFailed
        raise kind(message, (outside and exit_status(outside)) or 1) from None


@task(task_run_name="{stage.name}", **RETRIES)
def run_stage(stage: Stage, force: bool, parent_run: str | None) -> None:
    """Bring one stage up to date; GPU stages wait for the server's limit `gpu`.

    Raises `StageFailed`; only `StageInterrupted` is retried.
    """
    variables = ({PARENT_VARIABLE: parent_run} if parent_run else {}) | ({RETRAIN: "1"} if force else {})
    logging.getLogger("dvc").setLevel(logging.CRITICAL)  # errors are reported here
    with gpu_slot(stage.gpu):
        get_run_logger().info("stage %s starts", stage.name)
        try:
            status = follow(stage.name, lambda: reproduce(stage.name, force), stage.timeout_hours, variables)
        except TimeoutError:
            raise StageFailed(
                f"{stage.name} exceeded its timeout_hours = {stage.timeout_hours:g} in dvc.yaml; start again to resume "
                "from its last checkpoint, or raise the timeout"
            ) from None
    if status:
        raise failure(stage.name, status)
    get_run_logger().info("stage %s has ended", stage.name, extra={"ended": stage.name})


def main() -> int:
    """Run the stage of the command line; return its exit status."""
    logging.getLogger("dvc").setLevel(logging.CRITICAL)
    try:
        return reproduce(sys.argv[1])
    except StageFailed as error:
        sys.stderr.write(f"{error}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
