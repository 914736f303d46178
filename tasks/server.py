"""The Prefect server: the shared one of PREFECT_API_URL with its limit of GPU work, or a run's temporary one."""

import secrets
import shutil
import sqlite3
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_LOGGING_SETTINGS_PATH,
    PREFECT_SERVER_API_AUTH_STRING,
    temporary_settings,
)
from prefect.utilities.urls import url_for

from convrec.project.errors import InputError, NoSpace, Unavailable, causes, is_damaged
from convrec.project.redaction import redact

GPU_LIMIT = "gpu"  # a global concurrency limit of the Prefect server, which `make deploy` creates
_FREE, _PATIENCE = 32 * 2**20, 10.0  # bytes and seconds that the temporary server needs for its database
_LOGGING = Path(__file__).with_name("server_logging.yml")  # of the temporary server
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

    Without it, any web page that a browser on this machine shows could read logs and cancel runs. The server logs to
    `server.log` in PREFECT_HOME, not to the terminal: on a busy machine it finds its database locked, and tries again.
    Raises `NoSpace`, `Unavailable` or `InputError` if the server cannot use its database.
    """
    if PREFECT_API_URL.value():
        return nullcontext()
    _check_database(PREFECT_HOME.value())
    login = f"flow:{secrets.token_urlsafe()}"
    logins = {PREFECT_SERVER_API_AUTH_STRING: login, PREFECT_API_AUTH_STRING: login}
    return temporary_settings({**logins, PREFECT_LOGGING_SETTINGS_PATH: _LOGGING})


def _check_database(home: Path) -> None:
    """Check that the temporary server can write its database; Prefect would otherwise start it for ever."""
    home.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(home).free < _FREE:
        raise NoSpace(f"{home}: less than {_FREE / 2**20:.0f} MB are free for Prefect's database; free some space")
    database = home / "prefect.db"
    try:
        if database.exists():
            with closing(sqlite3.connect(database, _PATIENCE)) as connection:
                connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        if is_damaged(error):
            raise InputError(f"{database}: damaged ({error}); remove it: it only has the history of runs") from None
        raise Unavailable(f"{database}: {error}; end the process that uses it, then start again") from None


def ui_line() -> str:
    """Return where Prefect's UI shows the running flow, or how the next one can be seen there."""
    if not PREFECT_API_URL.value():
        return "to watch runs in Prefect's UI, start a server first: docs/operations.md#prefects-ui"
    return f"in Prefect's UI: {redact(url_for('flow-run', flow_run.id) or '')}"


def server_failure(error: BaseException) -> Unavailable | None:
    """Return the error to report if Prefect's server failed, as it does with a full disk; None for another cause."""
    for one in causes(error):
        if isinstance(one, httpx.HTTPError) or "ephemeral Prefect API server" in str(one):
            place = redact(PREFECT_API_URL.value() or f"its database and server.log are in {PREFECT_HOME.value()}")
            reason = redact(" ".join(str(one).split()))[:200]
            return Unavailable(
                f"Prefect's server failed ({reason}; {place}); free space there, or end the process that locks the "
                "database, then start again: finished work is kept"
            )
    return None


def gpu_slot(needed: bool = True) -> AbstractContextManager[None]:
    """Wait for and hold a slot of the server's concurrency limit `gpu`; do nothing without a shared server."""
    if not (needed and PREFECT_API_URL.value()):
        return nullcontext()
    get_run_logger().info("waiting for a slot of the concurrency limit %r", GPU_LIMIT)
    return concurrency(GPU_LIMIT, occupy=1, lease_duration=_LEASE_SECONDS)
