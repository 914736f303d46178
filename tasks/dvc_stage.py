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
from convrec.training.launch import SUPERVISED
from tasks.artifacts import Progress
from tasks.process import run_command

GPU_LIMIT = "gpu"  # a global concurrency limit of the Prefect server
_LEASE_SECONDS = 120.0  # renewed while the stage runs: the slot of a run that was killed is free after that
_PREFIX = re.compile(r"^convrec [\w-]+: ")  # of a command's message: the task's has its name already
_TAIL = 4  # lines of a failed stage's output in the message


class Stage(NamedTuple):
    """A stage of dvc.yaml: whether `meta.gpu` marks it, and how long it may take (`meta.timeout_hours`)."""

    name: str
    gpu: bool
    timeout_hours: float | None


class StageFailed(RuntimeError):
    """A command of a task ended with an error, and this exit status."""

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status if status >= 0 else 128 - status


class BadInput(StageFailed):
    """A stage refused its parameters or data."""


class StageInterrupted(StageFailed):
    """A stage lost what it needs, a GPU or a server, or was killed: another try goes on from its last checkpoint."""


def stages() -> list[Stage]:
    """Return the stages of dvc.yaml in the order of its graph.

    Raises `InputError` where there is no git or DVC, and where dvc.yaml or dvc.lock is damaged.
    """
    try:
        opened = Repo(".")
    except (NotDvcRepoError, SCMError) as error:
        message = "run in a clone of the project (where it came as an archive: `git init` makes a repository of it)"
        raise InputError(f"{str(error).partition(chr(10))[0]}; {message}") from None
    with opened as repo:
        try:
            graph = repo.index.graph  # edges point from a stage to what it depends on
        except (ParseError, YAMLValidationError) as error:
            message = " ".join(str(error).split())
            raise InputError(f"{message}; correct the file, or bring it back (`git checkout`)") from None
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=lambda stage: stage.addressing))
        return [
            Stage(stage.name, bool((stage.meta or {}).get("gpu")), (stage.meta or {}).get("timeout_hours"))
            for stage in order
            if hasattr(stage, "name")
        ]


def choose_stages(names: list[str] | None, force: list[str] | None) -> list[Stage]:
    """Return the stages of these names, all where none are given; raises `InputError` for a name of none."""
    found = stages()
    known = [stage.name for stage in found]
    for parameter, given in (("stages", names), ("force", force)):
        for name in given or ():
            if name not in known:
                raise InputError(f"{parameter}: {name!r} is no stage of dvc.yaml; choose among {', '.join(known)}")
    return [stage for stage in found if names is None or stage.name in names]


def has_server() -> bool:
    """Return whether a Prefect server is used by several: without PREFECT_API_URL, each run has one of its own."""
    return bool(PREFECT_API_URL.value())


def check_server() -> None:
    """Ask the Prefect server whether it is there; without PREFECT_API_URL there is none to ask.

    Raises `Unavailable` where it does not answer, and `InputError` where it refuses this user or is no such server.
    """
    if not has_server():
        return
    address = f"PREFECT_API_URL = {PREFECT_API_URL.value()!r}"
    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise InputError(f"{address} refuses this user; set PREFECT_API_AUTH_STRING to USER:PASSWORD") from None
        raise Unavailable(f"{address} is in trouble (status {error.response.status_code})") from None
    except (ValueError, httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise InputError(f"{address} is no Prefect server; such an address ends in /api") from None
    except httpx.TransportError as error:
        raise Unavailable(
            f"{address} cannot be reached ({str(error)[:120]}); start it, or unset the variable"
        ) from None


def ensure_gpu_limit() -> None:
    """Create the concurrency limit of GPU stages, one at a time, where the server has none yet."""
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(GPU_LIMIT)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=GPU_LIMIT, limit=1))


def needs_run(stage: str) -> bool:
    """Return whether DVC finds something changed: inputs, parameters, command or outputs."""
    with Repo(".", _wait_for_lock=True) as repo:
        return bool(repo.status(targets=[stage], with_deps=False))


def tool_environment() -> dict[str, str]:
    """Return the environment for commands of this Python's environment, which end with the flow."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, SUPERVISED: str(os.getpid()), "PATH": path}


def failure(what: str, status: int, tail: list[str]) -> StageFailed:
    """Return the error that an exit status means."""
    words = " | ".join(_PREFIX.sub("", line) for line in tail[-_TAIL:])
    message = f"{what} ended with status {status}; its last words: {words}"
    if status == EXIT_BAD_INPUT:
        return BadInput(message, status)
    killed = status < 0 or status > 128
    return (StageInterrupted if status == EXIT_UNAVAILABLE or killed else StageFailed)(message, status)


def _reproduce(stage: Stage, force: bool, parent_run: str | None) -> None:
    """Run `dvc repro` for one stage, its output going line by line to the task's log and its steps to an artifact."""
    logger, progress = get_run_logger(), Progress(stage.name)
    environment = tool_environment()
    if parent_run:
        environment[PARENT_VARIABLE] = parent_run
    lines: list[str] = []

    def on_line(line: str) -> None:
        logger.info(line)
        progress.read(line)
        lines[:] = [*lines[-_TAIL:], line]

    command = [sys.executable, "-m", "tasks.reproduce", stage.name, *(["--force"] if force else [])]
    hours = stage.timeout_hours
    try:
        status = run_command(command, environment, on_line, hours * 3600 if hours else None)
    except TimeoutError:
        raise StageFailed(
            f"stage {stage.name} took longer than its timeout_hours = {hours:g} in dvc.yaml; start again to go on from "
            "its last checkpoint, or raise it"
        ) from None
    if status:
        raise failure(f"stage {stage.name}", status, lines)
    progress.finish()


def is_retryable(_task: object, _run: object, state: State) -> bool:
    """Return whether another try can help: where a GPU or a server was away, or a command was killed."""
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

    Raises `StageFailed`; only `StageInterrupted` is tried again.
    """
    with gpu_slot(stage.gpu):
        _reproduce(stage, force, parent_run)


def gpu_slot(needed: bool = True) -> AbstractContextManager[None]:
    """Hold a slot of the server's limit `gpu`, waiting for it; without a server there is nobody to wait for."""
    if not (needed and has_server()):
        return nullcontext()
    ensure_gpu_limit()
    get_run_logger().info("waiting for a slot of the concurrency limit %r", GPU_LIMIT)
    return concurrency(GPU_LIMIT, occupy=1, lease_duration=_LEASE_SECONDS)
