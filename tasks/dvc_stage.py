"""One DVC stage as one Prefect task."""

import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import networkx
from dvc.exceptions import NotDvcRepoError
from dvc.repo import Repo
from dvc.scm import SCMError
from dvc.utils.serialize import ParseError
from dvc.utils.strictyaml import YAMLValidationError
from prefect import task
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL
from prefect.tasks import exponential_backoff

from convrec.errors import EXIT_BAD_INPUT, EXIT_UNAVAILABLE, InputError, Unavailable, outside_cause
from convrec.tracking import PARENT_VARIABLE
from convrec.training.launch import RETRAIN, SUPERVISED
from tasks.artifacts import Progress
from tasks.process import run_command

GPU_LIMIT = "gpu"  # a global concurrency limit of the Prefect server
_LEASE_SECONDS = 120.0  # renewed while the stage runs; the slot of a killed run is free after that
_PREFIX = re.compile(r"^convrec [\w-]+: ")  # prefix of a command's message, which the task's message does not repeat
_TAIL = 4  # lines of a failed stage's output in the message


class Stage(NamedTuple):
    """A stage of dvc.yaml, with its `meta.gpu` and `meta.timeout_hours`."""

    name: str
    gpu: bool
    timeout_hours: float | None


class StageFailed(RuntimeError):
    """A command of a task failed with this exit status."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status if status >= 0 else 128 - status


class BadInput(StageFailed):
    """A stage rejected its parameters or data."""


class StageInterrupted(StageFailed):
    """A stage lost its GPU or a server, or was killed; a retry resumes from its last checkpoint."""


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


def has_server() -> bool:
    """Return whether PREFECT_API_URL names a shared server; without it, each run has a temporary one."""
    return bool(PREFECT_API_URL.value())


def check_server() -> None:
    """Check that the Prefect server answers; do nothing without PREFECT_API_URL.

    Raises `Unavailable` if it does not answer, and `InputError` if it rejects this user or is not a Prefect server.
    """
    if not has_server():
        return
    address = f"PREFECT_API_URL = {PREFECT_API_URL.value()!r}"
    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise InputError(f"{address} rejects this user; set PREFECT_API_AUTH_STRING to USER:PASSWORD") from None
        raise Unavailable(f"{address} failed (status {error.response.status_code}); see the server's log") from None
    except (ValueError, httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise InputError(f"{address} is not a Prefect server; its address ends in /api") from None
    except httpx.TransportError as error:
        raise Unavailable(
            f"{address} cannot be reached ({str(error)[:120]}); start it, or unset the variable"
        ) from None


def ensure_gpu_limit() -> None:
    """Create the server's concurrency limit for GPU stages, with one slot, if it does not exist."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(GPU_LIMIT)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1))


def needs_run(stage: str) -> bool:
    """Return whether DVC reports changed inputs, parameters, command or outputs."""
    with Repo(".", _wait_for_lock=True) as repo:
        return bool(repo.status(targets=[stage], with_deps=False))


def tool_environment() -> dict[str, str]:
    """Return the environment for commands of this Python environment that end with the flow."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, SUPERVISED: str(os.getpid()), "PATH": path}


def failure(what: str, status: int, tail: list[str]) -> StageFailed:
    """Return the error for an exit status."""
    words = " | ".join(_PREFIX.sub("", line) for line in tail[-_TAIL:])
    message = f"{what} ended with status {status}; its last output: {words}"
    if status == EXIT_BAD_INPUT:
        return BadInput(message, status)
    killed = status < 0 or status > 128
    return (StageInterrupted if status == EXIT_UNAVAILABLE or killed else StageFailed)(message, status)


def _reproduce(stage: Stage, force: bool, parent_run: str | None) -> None:
    """Run `dvc repro` for one stage."""
    environment = tool_environment()
    if parent_run:
        environment[PARENT_VARIABLE] = parent_run
    if force:
        environment[RETRAIN] = "1"
    command = [sys.executable, "-m", "tasks.reproduce", stage.name, *(["--force"] if force else [])]
    run_logged(stage.name, command, environment, stage.timeout_hours)


def run_logged(name: str, command: list[str], environment: dict[str, str], hours: float | None) -> None:
    """Run a command of a stage; its output goes to the task's log, its progress to an artifact.

    Raises `StageFailed` if its exit status is not 0, or it exceeds the stage's timeout.
    """
    logger, progress = get_run_logger(), Progress(name)
    lines: list[str] = []

    def on_line(line: str) -> None:
        logger.info(line)
        progress.read(line)
        lines[:] = [*lines[-_TAIL:], line]

    try:
        status = run_command(command, environment, on_line, hours * 3600 if hours else None)
    except TimeoutError:
        raise StageFailed(
            f"stage {name} exceeded its timeout_hours = {hours:g} in dvc.yaml; start again to resume from its "
            "last checkpoint, or raise the timeout"
        ) from None
    if status:
        raise failure(f"stage {name}", status, lines)
    progress.finish()


def is_retryable(_task: object, _run: object, state: State) -> bool:
    """Return whether a retry can help: a GPU or a server was unavailable, or a command was killed."""
    error = state.result(raise_on_failure=False)
    if isinstance(error, (StageFailed, InputError)):
        return isinstance(error, StageInterrupted)
    return isinstance(error, Unavailable) or isinstance(outside_cause(error), Unavailable)


RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": exponential_backoff(backoff_factor=10),
    "retry_condition_fn": is_retryable,
}


@task(task_run_name="{stage.name}", **RETRIES)
def run_stage(stage: Stage, force: bool, parent_run: str | None) -> None:
    """Bring one stage up to date; GPU stages wait for the server's limit `gpu`.

    Raises `StageFailed`; only `StageInterrupted` is retried.
    """
    with gpu_slot(stage.gpu):
        _reproduce(stage, force, parent_run)


def gpu_slot(needed: bool = True) -> AbstractContextManager[None]:
    """Wait for and hold a slot of the server's concurrency limit `gpu`; do nothing without a shared server."""
    if not (needed and has_server()):
        return nullcontext()
    ensure_gpu_limit()
    get_run_logger().info("waiting for a slot of the concurrency limit %r", GPU_LIMIT)
    return concurrency(GPU_LIMIT, occupy=1, lease_duration=_LEASE_SECONDS)
