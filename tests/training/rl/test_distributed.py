"""Several processes give the update that one gives on the same batch, with groups spread over the processes."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from convrec.training.nodes import Nodes
from tests.registry.tracking.server import free_port
from tests.training.rl.launches import accelerate, run_program

STEPS, BATCH = 3, 16  # G = 8, so that a process of two or four holds whole groups, or half a group
SHARED = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.3, "scalar_rewards": "ranks"}


def _train(command: list[str], model: Path, output: Path, python: str = sys.executable, **options) -> dict:
    _train_on_nodes([command], model, output, python, **options)
    return json.loads((output / "history.json").read_text())


def _train_on_nodes(commands: list[list[str]], model: Path, output: Path, python: str, **options) -> None:
    """Run each node's launcher, all at the same time."""
    program = ["--model", str(model), "--output", str(output), "--steps", str(STEPS), "--given-rollouts"]
    program += ["--options", json.dumps({**SHARED, **options})]
    with ThreadPoolExecutor() as threads:
        list(threads.map(run_program, ([python, *command, *program] for command in commands)))


def _torchrun(processes: int) -> list[str]:
    options = ["--nproc_per_node", str(processes), "--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    return ["-m", "torch.distributed.run", *options, "-m", "tests.training.rl.tiny"]


@pytest.fixture(scope="module")
def alone(tiny_model, tmp_path_factory) -> tuple[dict, Path]:
    """One process on the whole batch."""
    output = tmp_path_factory.mktemp("alone")
    return _train(["-m", "tests.training.rl.tiny"], tiny_model, output, per_device_train_batch_size=BATCH), output


def _assert_same(one: tuple[dict, Path], several: tuple[dict, Path]) -> None:
    for name in ("loss", "reward", "reward/rank_02", "frac_rank_zero_std", "grad_norm", "kl"):
        first, second = ([row[name] for row in side[0]["log"] if name in row] for side in (one, several))
        assert len(first) == STEPS
        assert second == pytest.approx(first, rel=1e-3, abs=1e-6), name
    first, second = (load_file(side[1] / "final" / "model.safetensors") for side in (one, several))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_ddp_processes_give_the_update_of_one(tiny_model, alone, tmp_path):
    """Each of four processes holds four completions of a group of eight."""
    history = _train(_torchrun(4), tiny_model, tmp_path, per_device_train_batch_size=BATCH // 4)
    assert history["processes"] == 4
    _assert_same(alone, (history, tmp_path))


# Of the tests of DeepSpeed, CI runs one.
@pytest.mark.parametrize(("config", "nodes"), [pytest.param("zero2", 1, marks=pytest.mark.slow), ("zero3", 2)])
def test_deepspeed_gives_the_update_of_one(gpu_python, tiny_model, alone, tmp_path, config, nodes):
    port = free_port()
    places = [Nodes(nodes, rank, "127.0.0.1", port).arguments("num_processes", 2) for rank in range(nodes)]
    commands = [
        [*accelerate(config, 2, tmp_path, on_cpu=True, node=place), "tests.training.rl.tiny"] for place in places
    ]
    _train_on_nodes(commands, tiny_model, tmp_path, gpu_python, per_device_train_batch_size=BATCH // 2)
    history = json.loads((tmp_path / "history.json").read_text())
    assert history["processes"] == 2
    _assert_same(alone, (history, tmp_path))


@pytest.mark.slow
def test_fsdp2_gives_the_update_of_one(tiny_model, alone, tmp_path):
    command = [*accelerate("fsdp2", 2, tmp_path, on_cpu=True), "tests.training.rl.tiny"]
    history = _train(command, tiny_model, tmp_path, per_device_train_batch_size=BATCH // 2)
    assert history["processes"] == 2
    _assert_same(alone, (history, tmp_path))


@pytest.mark.slow
def test_a_training_with_fsdp2_resumes(tiny_model, tmp_path):
    """The rollouts are sampled, so the random states count, too."""
    outputs = tmp_path / "undisturbed", tmp_path / "resumed"
    options = {**SHARED, "optim": "adamw_torch", "save_strategy": "steps", "save_steps": 2}
    options |= {"per_device_train_batch_size": BATCH // 2}
    for output in outputs:
        program = ["tests.training.rl.tiny", "--model", str(tiny_model), "--output", str(output), "--steps", "4"]
        launch = accelerate("fsdp2", 2, tmp_path, on_cpu=True)
        run_program([sys.executable, *launch, *program, "--options", json.dumps(options)])
        if output == outputs[0]:
            shutil.copytree(output / "checkpoint-2", outputs[1] / "checkpoint-2")
            written = (outputs[1] / "checkpoint-2").stat().st_mtime_ns
    assert (outputs[1] / "checkpoint-2").stat().st_mtime_ns == written  # not trained again
    first, second = (load_file(output / "final" / "model.safetensors") for output in outputs)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0, msg=name)
