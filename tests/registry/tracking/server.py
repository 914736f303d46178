"""A real tracking server for the tests: started, killed without warning, and started again on the same data."""

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class TrackingServer:
    """`mlflow server` on SQLite, on a free port of 127.0.0.1."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.database = folder / "mlflow.db"

    def start(self) -> None:
        """Return once the server answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.database}", "--workers", "1"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        environment |= {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        for _ in range(1200):
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            threading.Event().wait(0.1)
        self.kill()
        raise AssertionError((self.folder / "server.log").read_text()[-4000:])

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL the server and its workers."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()
