"""The deployments on the real servers: a schedule that fires, a cancel, a killed worker, a lost tracking server.

One story in one test, since each part goes on from what the part before has left; nothing is lost in any.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from convrec.registry.versions import CHAMPION, MODEL_NAME
from convrec.training.callbacks import read_history
from stack import Stack
from tests.flows.deployed import Deployed, wait_for
from tests.project import NO_BASELINES, SHRUNK, commit, make_project, set_params

pytestmark = pytest.mark.pipeline

# Long enough that a busy machine still finds each training running when it is to be hit.
SFT_STEPS, RL_STEPS = 240, 200
SIZES = {
    "base_model": {"embedded": {"num_train_epochs": 0}},
    "sft": {"num_train_epochs": 30, "save_steps": 1000},
    "rank_grpo": {"max_steps": RL_STEPS, "save_steps": 1000, "validation_steps": 1000},
}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory, native_stack: Stack) -> Iterator[Deployed]:
    """The small project with its deployments; `weekly` is due every minute."""
    project = make_project(tmp_path_factory.mktemp("deployed") / "project")
    set_params(project, SHRUNK)
    set_params(project, NO_BASELINES, "promotion.yaml")
    set_params(project, SIZES)
    file = project / "prefect.yaml"
    file.write_text(file.read_text().replace('cron: "0 2 * * 0"', 'cron: "* * * * *"'))
    commit(project, "start")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CONVREC_REPOSITORY", str(project))
        environment.delenv("SHELL", raising=False)  # as for a service: DVC's commands then run in /bin/sh
        native_stack.stop("worker-cpu")
        native_stack.start("worker-cpu")
        found = Deployed(project, native_stack)
        found.run("python", "-m", "flows.deploy", "--training-pool", "cpu")
        found.run("prefect", "gcl", "update", "gpu", "--limit", "2")  # a killed run keeps its slot for two minutes
        yield found


def _scheduled(deployed: Deployed) -> str:
    """Return the run that the schedule began, and stop the schedule."""
    weekly = deployed.api("deployments/name/train/weekly")

    def begun() -> list[dict]:
        wanted = {"deployment_id": {"any_": [weekly["id"]]}, "state": {"type": {"any_": ["RUNNING"]}}}
        return deployed.api("flow_runs/filter", flow_runs=wanted)

    (run,) = wait_for(begun, 120, "the scheduled run")
    deployed.run("prefect", "deployment", "schedule", "pause", "train/weekly", weekly["schedules"][0]["id"])
    assert run["auto_scheduled"]
    return run["id"]


def _checkpoints(workspace: Path, stage: str) -> list[int]:
    found = (workspace / "checkpoints" / stage).glob("*/checkpoint-*/complete")
    return sorted(int(path.parent.name.rsplit("-", 1)[1]) for path in found)


def _wait_for_step(workspace: Path, stage: str, step: int) -> None:
    """Wait until a training has done so many steps: by its history, since logs reach the server seconds later."""

    def done() -> bool:
        rows = [
            row for path in (workspace / "checkpoints" / stage).glob("*/history.jsonl") for row in read_history(path)
        ]
        return any(row["step"] >= step for row in rows)

    wait_for(done, 600, f"step {step} of {stage}")


def test_runs_are_scheduled_cancelled_killed_and_lose_nothing(deployed, monkeypatch):
    workspace = deployed.workspaces / "train"

    # A schedule fires. The run is cancelled in the middle of SFT: the training stops at a checkpoint, nothing goes on.
    first = _scheduled(deployed)
    second = deployed.start("train", "weekly")
    _wait_for_step(workspace, "sft", 7)
    deployed.cancel(first)
    assert deployed.ended(first, 60)["state_type"] == "CANCELLED"
    wait_for(lambda: not deployed.stages(), 30, "the end of what the cancelled run had started")
    stopped = _checkpoints(workspace, "sft")[-1]
    assert 7 <= stopped < SFT_STEPS, "at the step in which the signal came"
    assert deployed.ended(second, 10)["state_type"] == "CANCELLED", "no second run of a deployment beside the first"

    # The next run goes on from there. Its tracking server dies, then its worker, both in the middle of Rank-GRPO.
    third = deployed.start("train", "weekly")
    deployed.wait_for_log(third, rf"resuming at step {stopped} of", 200)
    _wait_for_step(workspace, "rank_grpo", 2)
    os.killpg(deployed.stack.pid("mlflow"), signal.SIGKILL)  # without waiting: the steps go on
    _wait_for_step(workspace, "rank_grpo", 6)
    deployed.kill_worker("cpu")
    wait_for(lambda: not deployed.stages(), 60, "the end of the stage, whose flow run is gone")
    crashed_at = _checkpoints(workspace, "rank_grpo")[-1]
    assert 6 <= crashed_at < RL_STEPS

    # The servers are back; the run that is gone has crashed (the server's automation says so after two minutes).
    deployed.stack.start("mlflow")
    deployed.stack.start("worker-cpu")
    deployed.api(f"flow_runs/{third}/set_state", state={"type": "CRASHED", "name": "Crashed"}, force=True)
    last = deployed.start("train", "weekly")
    assert deployed.ended(last, 600)["state_type"] == "COMPLETED", deployed.log(last)[-3000:]
    output = deployed.log(last)
    assert f"resuming at step {crashed_at} of {RL_STEPS}" in output and "Finished in state Completed" in output
    assert "stage sft is up to date" in output

    # All of it is in PostgreSQL and the object store: the curves whole, the model registered and promoted.
    for name, value in deployed.stack.environment().items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(deployed.stack.environment()["MLFLOW_TRACKING_URI"])
    champion = client.get_model_version_by_alias(MODEL_NAME, CHAMPION)
    assert champion.version == "1" and any((deployed.stack.folder / "s3").rglob("model.safetensors"))
    record = json.loads((workspace / "runs" / "rank_grpo.json").read_text())
    steps = [point.step for point in client.get_metric_history(record["run_id"], "reward")]
    assert steps == list(range(1, RL_STEPS + 1)), "every step once, those of the run that crashed among them"
    assert client.get_run(record["run_id"]).info.status == "FINISHED"

    # What a person sees: readable names, the table, the links, the progress.
    assert deployed.flow_run(last)["name"].startswith("train embedded 20")
    artifacts = {artifact["key"] for artifact in deployed.api("artifacts/filter", limit=100)}
    expected = {"train-results", "promotion", "train-run", "train-report", "progress-sft", "progress-rank-grpo"}
    assert expected <= artifacts


def test_the_other_deployments_take_what_the_first_has_made(deployed):
    """Each in a clone of its own: the data come from the cache that they share, and nothing is trained."""
    nightly, promote, rollback = (
        deployed.start(*names) for names in (("evaluate", "nightly"), ("promote", "promote"), ("rollback", "rollback"))
    )
    assert deployed.ended(nightly, 300)["state_type"] == "COMPLETED", deployed.log(nightly)[-3000:]
    assert not re.search(r"step \d+/", deployed.log(nightly))
    assert "evaluation" in {artifact["key"] for artifact in deployed.api("artifacts/filter", limit=100)}
    assert deployed.ended(promote, 300)["state_type"] == "COMPLETED", deployed.log(promote)[-3000:]
    decided = "is the champion already"
    wait_for(lambda: decided in deployed.log(promote), 30, decided)  # a run's last lines follow its last state
    refused = deployed.ended(rollback, 300)
    assert refused["state_type"] == "FAILED" and "is the first champion" in refused["state"]["message"]
    for name in ("evaluate", "promote"):
        train, other = (deployed.workspaces / folder / "data" / "processed" for folder in ("train", name))
        assert (other / "test.parquet").read_bytes() == (train / "test.parquet").read_bytes()


def test_whoever_has_the_variables_of_the_team_uses_what_was_made(deployed):
    workspace = deployed.workspaces / "train"
    assert "not sent" not in deployed.run("convrec", "tracking", "sync", cwd=workspace).stdout
    answer = deployed.run("convrec", "recommend", "I loved Heat", "-n", "3", "--json", cwd=workspace)
    assert len(json.loads(answer.stdout)) == 3
