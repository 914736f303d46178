"""One DVC stage as one Prefect task."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import networkx
from dvc.repo import Repo
from prefect import task
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.tasks import exponential_backoff

from convrec.tracking import PARENT_VARIABLE

_GPU_LIMIT = "gpu"  # a global concurrency limit of the Prefect server


class StageFailed(RuntimeError):
    """A stage ended with an error that trying again may cure."""


class BadInput(RuntimeError):
    """A stage refused its parameters or data: trying again cannot help."""


def stage_order() -> list[tuple[str, bool]]:
    """Return the stages of dvc.yaml in the order of its graph, and whether each is marked `meta.gpu`."""
    with Repo(".") as repo:
        graph = repo.index.graph  # edges point from a stage to what it depends on
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=lambda stage: stage.addressing))
        return [(stage.name, bool((stage.meta or {}).get("gpu"))) for stage in order if hasattr(stage, "name")]


def ensure_gpu_limit() -> None:
    """Create the concurrency limit of GPU stages, one at a time, where the server has none yet."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(_GPU_LIMIT)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=_GPU_LIMIT, limit=1))


def needs_run(stage: str) -> bool:
    """Return whether DVC finds something changed: inputs, parameters, command or outputs."""
    with Repo(".") as repo:
        return bool(repo.status(targets=[stage], with_deps=False))


def _reproduce(stage: str, parent_run: str | None) -> None:
    """Run `dvc repro` for one stage, its output going line by line to the task's log.

    The process group is ended with the task, because DVC leaves its child running when it is itself killed.
    """
    logger = get_run_logger()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if parent_run:
        environment[PARENT_VARIABLE] = parent_run
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--quiet", "--single-item", stage]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    tail: list[str] = []
    bad_input = False
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip():
                logger.info(line.rstrip())
                tail = [*tail[-3:], line.rstrip()]
                # The command line gives its name only to messages for bad input; DVC hides its exit status.
                bad_input = bad_input or line.startswith(f"convrec {stage}: ")
        status = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if status:
        kind = BadInput if bad_input else StageFailed
        raise kind(f"stage {stage} failed; its last words: {' | '.join(tail)}")


def _can_help(_task: object, _run: object, state: State) -> bool:
    """Return whether a retry can help: not with bad input."""
    try:
        state.result()
    except BadInput:
        return False
    except Exception:  # any other end of the task may be cured by another try
        return True
    return True


@task(
    task_run_name="{stage}",
    retries=2,
    retry_delay_seconds=exponential_backoff(backoff_factor=10),
    retry_condition_fn=_can_help,
)
def run_stage(stage: str, gpu: bool, parent_run: str | None) -> None:
    """Bring one stage up to date; GPU stages wait for the limit `gpu`.

    Raises `BadInput` (not retried) or `StageFailed` (retried).
    """
    if gpu:
        with concurrency(_GPU_LIMIT, occupy=1):
            _reproduce(stage, parent_run)
    else:
        _reproduce(stage, parent_run)
