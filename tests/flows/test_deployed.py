"""The deployments on the servers of docker-compose.yml: scheduled, cancelled, killed, cut off from the tracking server.

One story in one test, since each part goes on from what the part before has left; nothing is lost in any.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from convrec.registry.versions import CHAMPION, model_name
from convrec.training.callbacks import read_history
from tests.servers import Servers, wait_for
from tests.small_project import ROOT, SHRUNK, commit, make_project, run_in, set_params

_TERMINAL = {"COMPLETED", "FAILED", "CANCELLED", "CRASHED"}
# Long enough that a busy machine still finds each training running when it is to be hit.
RL_STEPS = 200
SIZES = {
    "base_model": {"embedded": {"conversations": 0}},
    "sft": {"num_train_epochs": 30, "save_steps": 1000},
    "rank_grpo": {"max_steps": RL_STEPS, "save_steps": 1000},
}
MONTH = {"sft": {"num_train_epochs": 1}, "rank_grpo": {"max_steps": 2}}
# Few rows and small models make no gain significant.
POLICY = """
lists: free
gains: {ndcg: {min: -1.0, max_p: 1.0}}
baselines: {names: []}
guard_rails: {}
approval: none
"""


class Deployed:
    """The project's deployments at the Prefect server, and the workspaces of its worker."""

    def __init__(self, project: Path, servers: Servers):
        self.project, self.servers, self.api = project, servers, servers.prefect
        self.workspaces = Path(servers.variables("worker")["CONVREC_WORKSPACES"])

    def run(self, *command: str, cwd: Path | None = None) -> str:
        """Run a command as somebody who uses the servers from a shell; return its output."""
        return run_in(cwd or self.project, *command, timeout=600, **self.servers.clients()).stdout

    def start(self, name: str, **parameters: Any) -> str:
        """Create a run of a deployment; return its id."""
        found, scheduled = self.api(f"deployments/name/{name}")["id"], {"type": "SCHEDULED"}
        return self.api(f"deployments/{found}/create_flow_run", state=scheduled, parameters=parameters)["id"]

    def end_of(self, run: str, seconds: float = 900) -> dict[str, Any]:
        """Wait for a run's end, and return its state."""

        def final() -> dict[str, Any] | None:
            state = self.api(f"flow_runs/{run}")["state"]
            return state if state["type"] in _TERMINAL else None

        return wait_for(final, seconds, f"the end of flow run {run}")

    def complete(self, run: str) -> str:
        """Wait until a run is completed; return what it and its tasks have logged."""
        state = self.end_of(run)
        assert state["type"] == "COMPLETED", f"{state['message']}\n{self.log(run)[-3000:]}"
        return self.log(run)

    def log(self, run: str) -> str:
        """Return all that a run and its tasks have logged so far."""
        lines: list[str] = []
        while True:
            wanted = {"flow_run_id": {"any_": [run]}}
            page = self.api("logs/filter", logs=wanted, sort="TIMESTAMP_ASC", offset=len(lines), limit=200)
            lines += [entry["message"] for entry in page]
            if len(page) < 200:
                return "\n".join(lines)

    def stages(self) -> list[psutil.Process]:
        """Return the processes that work in one of the workspaces; the worker enters them in its pull steps."""
        return [
            process
            for process in psutil.process_iter(["cwd", "status"])
            if (process.info["cwd"] or "").startswith(f"{self.workspaces}{os.sep}")
            and process.info["status"] != psutil.STATUS_ZOMBIE
            and process.pid != self.servers.pid("worker")
        ]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory, servers: Servers) -> Iterator[Deployed]:
    """The small project with its deployments; `weekly` is due every minute."""
    project = make_project(tmp_path_factory.mktemp("deployed") / "project")
    for changes in (SHRUNK, SIZES):
        set_params(project, changes)
    (project / "promotion.yaml").write_text(POLICY)
    file = project / "prefect.yaml"
    file.write_text(file.read_text().replace('cron: "0 2 * * 0"', 'cron: "* * * * *"'))
    commit(project, "start")
    servers.stop("worker")
    servers.repository = project
    servers.start("worker")
    found = Deployed(project, servers)
    found.run("make", "--file", str(ROOT / "Makefile"), "deploy", "POOL=cpu", "READY=")
    found.run("prefect", "gcl", "update", "gpu", "--limit", "2")  # a killed run keeps its slot for two minutes
    yield found


def _scheduled(deployed: Deployed) -> str:
    """Return the run that the schedule began, and stop the schedule."""
    weekly = deployed.api("deployments/name/train/weekly")
    wanted = {"deployment_id": {"any_": [weekly["id"]]}, "state": {"type": {"any_": ["RUNNING"]}}}
    (run,) = wait_for(lambda: deployed.api("flow_runs/filter", flow_runs=wanted), 240, "the scheduled run")
    deployed.run("prefect", "deployment", "schedule", "pause", "train/weekly", weekly["schedules"][0]["id"])
    assert run["auto_scheduled"]
    return run["id"]


def _checkpoints(workspace: Path, stage: str) -> list[int]:
    found = (workspace / "checkpoints" / stage).glob("*/checkpoint-*/complete")
    return sorted(int(path.parent.name.rsplit("-", 1)[1]) for path in found)


def _wait_for_step(workspace: Path, stage: str, step: int) -> None:
    """Wait until a training has done so many steps: by its history, since logs reach the server seconds later."""

    def done() -> bool:
        files = (workspace / "checkpoints" / stage).glob("*/history.jsonl")
        return any(row["step"] >= step for path in files for row in read_history(path))

    wait_for(done, 900, f"step {step} of {stage}")


def test_runs_are_scheduled_cancelled_killed_and_lose_nothing(deployed, servers, monkeypatch):
    workspace = deployed.workspaces / "train"

    # A schedule fires. The run is cancelled in the middle of SFT: the training stops at a checkpoint, nothing goes on.
    first = _scheduled(deployed)
    second = deployed.start("train/weekly")
    _wait_for_step(workspace, "sft", 7)
    deployed.api(f"flow_runs/{first}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})
    assert deployed.end_of(first)["type"] == "CANCELLED"
    wait_for(lambda: not deployed.stages(), 60, "the end of what the cancelled run had started")
    stopped = _checkpoints(workspace, "sft")[-1]
    assert deployed.end_of(second)["type"] == "CANCELLED", "no second run of a deployment beside the first"

    # The next run goes on from there. Its tracking server dies, then its worker, both in the middle of Rank-GRPO.
    third = deployed.start("train/weekly")
    _wait_for_step(workspace, "rank_grpo", 2)
    os.killpg(servers.pid("mlflow"), signal.SIGKILL)  # without waiting: the steps go on
    _wait_for_step(workspace, "rank_grpo", 6)
    worker = psutil.Process(servers.pid("worker"))
    for process in [worker, *worker.children()]:  # the flow runs are its children; their stages are not hit
        process.kill()
    wait_for(lambda: not deployed.stages(), 60, "the end of the stage, whose flow run is gone")
    crashed_at = _checkpoints(workspace, "rank_grpo")[-1]
    assert 6 <= crashed_at < RL_STEPS
    resumed = re.search(rf"resuming at step {stopped} of (\d+)", deployed.log(third))
    assert resumed and 7 <= stopped < int(resumed[1]), "at the step in which the signal came"

    # The servers are back; the run that is gone has crashed (the server's automation says so after two minutes).
    servers.start("mlflow", "worker")
    deployed.api(f"flow_runs/{third}/set_state", state={"type": "CRASHED", "name": "Crashed"}, force=True)
    last = deployed.start("train/weekly")
    output = deployed.complete(last)
    resumed = re.search(rf"resuming at step {crashed_at} of (\d+)", output)
    assert resumed and re.search("sft +up to date", output)

    # All of it is recorded: the curves whole, the model registered and promoted, readable names, links.
    for name, value in servers.clients().items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(servers.address("mlflow"))
    assert client.get_model_version_by_alias(model_name(), CHAMPION).version == "1"
    record = json.loads((workspace / "runs" / "rank_grpo.json").read_text())
    steps = [point.step for point in client.get_metric_history(record["run_id"], "reward")]
    assert steps == list(range(1, int(resumed[1]) + 1)), "every step once, those of the run that crashed among them"
    assert client.get_run(record["run_id"]).info.status == "FINISHED"
    assert deployed.api(f"flow_runs/{last}")["name"].startswith("train embedded 20")
    artifacts = {artifact["key"] for artifact in deployed.api("artifacts/filter", limit=100)}
    links = {"train-results", "promotion", "train-run", "train-report"}
    assert links <= artifacts


def test_a_refresh_compares_both_versions_on_the_new_month(deployed, servers, monkeypatch):
    """Also on a worker that has only now cloned the project."""
    set_params(deployed.project, MONTH)
    commit(deployed.project, "less training")
    output = deployed.complete(deployed.start("refresh/monthly", test_period="2022-11"))
    assert re.search("(better than|within the loss that) ", output)
    for name, value in servers.clients().items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(servers.address("mlflow"))
    champion = client.get_model_version_by_alias(model_name(), CHAMPION)
    assert champion.version == "2"
    workspace = deployed.workspaces / "refresh"
    answer = deployed.run("convrec", "recommend", "I loved Heat", "-n", "3", "--json", cwd=workspace)
    assert len(json.loads(answer)) == 3
