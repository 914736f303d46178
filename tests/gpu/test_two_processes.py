"""Two processes that share one GPU train as one process does on the same batch (DDP)."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.registry.tracking.server import free_port
from tests.small_project import ROOT

STEPS, LISTS = 2, 16
# NCCL refuses two ranks of one host on one GPU, so each rank names a host of its own.
_SHARED = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}


def _train(model, output, device, number):
    """Return the losses and the final weights of `number` processes."""
    output.mkdir()
    options = {"optim": "sgd", "learning_rate": 0.05, "use_cpu": device == "cpu"}
    options |= {"per_device_train_batch_size": LISTS // number}
    command = [sys.executable, "-m", "tests.training.rl.tiny", "--model", str(model), "--output", str(output)]
    command += ["--steps", str(STEPS), "--given-rollouts", "--options", json.dumps(options)]
    shared = {**os.environ, **_SHARED, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    ranks = [{"RANK": str(i), "WORLD_SIZE": str(number), "NCCL_HOSTID": f"host-{i}"} for i in range(number)]
    logs = [output / f"{i}.log" for i in range(number)]
    processes = []
    try:
        for own, log in zip(ranks, logs, strict=True):
            with log.open("w") as file:
                environment = shared | own if number > 1 else dict(os.environ)
                processes.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file))
        statuses = [process.wait(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(statuses), "\n".join(log.read_text()[-2000:] for log in logs)
    history = json.loads((output / "history.json").read_text())
    assert history["processes"] == number
    return [row["loss"] for row in history["log"] if "loss" in row], load_file(output / "final" / "model.safetensors")


@pytest.mark.slow
def test_two_processes_on_one_device_give_the_update_of_one(tiny_model, tmp_path, device):
    (losses, weights), (own_losses, own) = (_train(tiny_model, tmp_path / str(n), device, n) for n in (1, 2))
    assert len(losses) == STEPS and own_losses == pytest.approx(losses, rel=1e-3, abs=1e-6)
    for name, value in weights.items():
        torch.testing.assert_close(own[name], value, rtol=1e-3, atol=1e-5, msg=name)
