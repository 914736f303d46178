"""Prefect's temporary server, for flows without PREFECT_API_URL: each run has its own, which ends with the run."""

import fcntl
import os
import signal
import subprocess
import sys
from typing import Any

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_HOME, get_current_settings

from convrec.errors import InputError, Unavailable
from convrec.training.launch import ends_with_this_process

_STARTUP_FAILURE = 3  # uvicorn's exit status


class _TemporaryServer(SubprocessASGIServer):
    """The server that Prefect would start by itself, and use without asking whether the flow still lives."""

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        """Start the server as Prefect does; whatever ends this process, the kernel kills the server with it."""
        if self.server_process is not None and self.server_process.poll() == _STARTUP_FAILURE:  # Prefect tries for ever
            raise InputError(
                f"Prefect's temporary server does not start with the database in {PREFECT_HOME.value()} (its own words "
                "are above); remove that folder: it holds nothing but the history of runs without a server"
            )
        command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app"]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "error", "--lifespan", "on"]
        settings = get_current_settings().to_environment_variables(exclude_unset=True)
        modes = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
        return subprocess.Popen(
            [*command, *options],
            env={**os.environ, **modes, **settings},
            preexec_fn=ends_with_this_process(signal.SIGKILL),
        )


def start_temporary_server() -> None:
    """Start this process's temporary server, which Prefect then uses; call it in the main thread, before a flow.

    Servers of one PREFECT_HOME start one after the other: each brings their database up to date. Raises `InputError`
    where the server cannot use that database, and `Unavailable` where it takes too long.
    """
    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _TemporaryServer().start()  # Prefect has one such object a process: from now on this one
        except RuntimeError as error:
            raise Unavailable(f"Prefect's temporary server does not start ({error}); start again") from None
