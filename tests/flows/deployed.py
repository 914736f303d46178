"""A small project deployed to a native stack: its runs are started, watched and killed as an operator would."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import requests

from stack import Stack

T = TypeVar("T")
_TERMINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}


def wait_for(ask: Callable[[], T], seconds: float, what: str) -> T:
    """Return the first true answer; fails after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}"
        time.sleep(0.2)
    return answer


class Deployed:
    """The project's deployments at the stack's Prefect server, and the workspaces of its workers."""

    def __init__(self, project: Path, stack: Stack):
        self.project, self.stack = project, stack
        self.workspaces = stack.folder / "work"

    def environment(self) -> dict[str, str]:
        """Return the environment of somebody who uses the stack from a shell."""
        foreign = ("MLFLOW_", "PREFECT_", "DVC_", "CONVREC_", "AWS_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**kept, **self.stack.environment(), "PATH": path}

    def run(self, *command: str, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess:
        """Run a command as somebody who uses the stack."""
        result = subprocess.run(
            command,
            cwd=cwd or self.project,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert not (check and result.returncode), f"{command}: {result.stdout[-3000:]}\n{result.stderr[-3000:]}"
        return result

    def api(self, path: str, **values: Any) -> Any:
        """Post to Prefect's server, and return its answer; without values, get."""
        variables = self.stack.environment()
        user, _, password = variables["PREFECT_API_AUTH_STRING"].partition(":")
        url, auth = f"{variables['PREFECT_API_URL']}/{path}", (user, password)
        answer = (
            requests.post(url, json=values, auth=auth, timeout=60)
            if values
            else requests.get(url, auth=auth, timeout=60)
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def start(self, flow: str, deployment: str, **parameters: Any) -> str:
        """Create a run of a deployment; return its id."""
        found = self.api(f"deployments/name/{flow}/{deployment}")
        return self.api(
            f"deployments/{found['id']}/create_flow_run", state={"type": "SCHEDULED"}, parameters=parameters
        )["id"]

    def flow_run(self, run: str) -> dict[str, Any]:
        """Return what the server knows of a run."""
        return self.api(f"flow_runs/{run}")

    def ended(self, run: str, seconds: float) -> dict[str, Any]:
        """Wait for a run's end, and return what the server knows of it then."""

        def final() -> dict[str, Any] | None:
            found = self.flow_run(run)
            return found if found["state_type"] in _TERMINAL else None

        return wait_for(final, seconds, f"the end of flow run {run}")

    def cancel(self, run: str) -> None:
        """Cancel a run as the UI's button does."""
        self.api(f"flow_runs/{run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})

    def log(self, run: str) -> str:
        """Return all that a run and its tasks have logged so far."""
        lines: list[str] = []
        while True:
            wanted = {"flow_run_id": {"any_": [run]}}
            page = self.api("logs/filter", logs=wanted, sort="TIMESTAMP_ASC", offset=len(lines), limit=200)
            lines += [entry["message"] for entry in page]
            if len(page) < 200:
                return "\n".join(lines)

    def wait_for_log(self, run: str, pattern: str, seconds: float) -> None:
        """Wait until a line of the run's log matches; fails at once where the run ends without one."""

        def found() -> bool:
            text = self.log(run)
            if re.search(pattern, text):
                return True
            state = self.flow_run(run)["state"]
            assert state["type"] not in _TERMINAL, f"{state['name']}: {state['message']}\n{text[-3000:]}"
            return False

        wait_for(found, seconds, f"{pattern!r} in the log of flow run {run}")

    def kill_worker(self, pool: str) -> None:
        """Kill a worker and its flow runs' processes at once; their stages are not hit."""
        name = f"worker-{pool}"
        worker = psutil.Process(self.stack.pid(name))
        for process in [worker, *worker.children()]:
            process.kill()

    def stages(self) -> list[psutil.Process]:
        """Return the processes that work in one of the workspaces, the workers aside."""
        workers = {self.stack.pid(name) for name in ("worker-cpu", "worker-gpu")}
        folder = f"{self.workspaces}{os.sep}"
        return [
            process
            for process in psutil.process_iter(["cwd", "status"])
            if (process.info["cwd"] or "").startswith(folder)
            and process.info["status"] != psutil.STATUS_ZOMBIE
            and process.pid not in workers
        ]
