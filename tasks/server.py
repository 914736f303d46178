"""The Prefect server: the shared one of PREFECT_API_URL with its limit of GPU work, or a run's temporary one."""

import secrets
from contextlib import AbstractContextManager, nullcontext

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.logging import get_run_logger
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)

from convrec.project.errors import InputError, Unavailable
from convrec.project.redaction import redact

GPU_LIMIT = "gpu"  # a global concurrency limit of the Prefect server, which `make deploy` creates
_LEASE_SECONDS = 120.0  # renewed while the stage runs; the slot of a killed run is free after that


def check_server() -> None:
    """Check that the Prefect server answers; do nothing without PREFECT_API_URL.

    Raises `Unavailable` if it does not answer, and `InputError` if it rejects this user or is not a Prefect server.
    """
    if not PREFECT_API_URL.value():  # each run has a temporary one
        return
    address = f"PREFECT_API_URL = {redact(PREFECT_API_URL.value())!r}"
    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except (ValueError, httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise InputError(f"{address} is not a Prefect server; its address ends in /api") from None
    except httpx.HTTPError as error:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (401, 403):
            raise InputError(f"{address} rejects this user; set PREFECT_API_AUTH_STRING to USER:PASSWORD") from None
        reason = redact(str(error))[:120]
        raise Unavailable(f"{address} does not answer ({reason}); start it, or unset the variable") from None


def private_server() -> AbstractContextManager[object]:
    """Let the temporary Prefect server ask for a login, which only this run knows; do nothing with a shared server.

    Without it, any web page that a browser on this machine shows could read logs and cancel runs.
    """
    if PREFECT_API_URL.value():
        return nullcontext()
    login = f"flow:{secrets.token_urlsafe()}"
    return temporary_settings({PREFECT_SERVER_API_AUTH_STRING: login, PREFECT_API_AUTH_STRING: login})


def gpu_slot(needed: bool = True) -> AbstractContextManager[None]:
    """Wait for and hold a slot of the server's concurrency limit `gpu`; do nothing without a shared server."""
    if not (needed and PREFECT_API_URL.value()):
        return nullcontext()
    get_run_logger().info("waiting for a slot of the concurrency limit %r", GPU_LIMIT)
    return concurrency(GPU_LIMIT, occupy=1, lease_duration=_LEASE_SECONDS)
