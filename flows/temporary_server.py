"""Prefect's temporary server for flows without PREFECT_API_URL: each run has its own server."""

import fcntl
import os
import signal
import subprocess
import sys
from typing import Any

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_HOME, get_current_settings

from convrec.project.errors import InputError, Unavailable
from convrec.training.launch import ends_with_this_process

_STARTUP_FAILURE = 3  # uvicorn's exit status


class _TemporaryServer(SubprocessASGIServer):
    """Prefect's own temporary server, changed so that it ends with the flow's process."""

    def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
        """Start the server as Prefect does; the kernel kills it when this process ends for any reason."""
        if (
            self.server_process is not None and self.server_process.poll() == _STARTUP_FAILURE
        ):  # Prefect would retry forever
            raise InputError(
                f"Prefect's temporary server does not start with the database in {PREFECT_HOME.value()} (its error is "
                "above); remove that folder, which contains only the history of runs without a server"
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

    Servers of one PREFECT_HOME start one after the other, because each migrates the shared database. Raises
    `InputError` if the server cannot use that database, and `Unavailable` if it takes too long to start.
    """
    home = PREFECT_HOME.value()
    home.mkdir(parents=True, exist_ok=True)
    with (home / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _TemporaryServer().start()  # Prefect reuses this object for the whole process
        except RuntimeError as error:
            raise Unavailable(f"Prefect's temporary server does not start ({error}); start again") from None
