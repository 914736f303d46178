"""Several processes give the update that one gives on the same batch, with groups spread over the processes."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.rl.launches import accelerate, run_program

BATCH = 16  # G = 8, so that a process of two or four holds whole groups, or half a group
SGD = {"optim": "sgd", "learning_rate": 0.05, "max_grad_norm": 0.3}


def _train(
    launch: list[str], model: Path, output: Path, processes: int, *flags: str, steps: int = 3, **options
) -> dict:
    program = ["tests.training.rl.tiny", "--model", str(model), "--output", str(output), "--steps", str(steps), *flags]
    own = {"per_device_train_batch_size": BATCH // processes, **options}
    run_program([*launch, *program, "--options", json.dumps(own)])
    history = json.loads((output / "history.json").read_text())
    assert history["processes"] == processes
    return history


@pytest.fixture(scope="module")
def alone(tiny_model, tmp_path_factory) -> tuple[dict, Path]:
    """One process on the whole batch."""
    output = tmp_path_factory.mktemp("alone")
    return _train([sys.executable, "-m"], tiny_model, output, 1, "--given-rollouts", **SGD), output


@pytest.mark.slow
@pytest.mark.parametrize(("config", "processes"), [("ddp", 4), ("fsdp2", 2), ("zero2", 2)])
def test_processes_give_the_update_of_one(request, tiny_model, alone, tmp_path, config, processes):
    """With DDP, each of four processes holds four completions of a group of eight."""
    python = request.getfixturevalue("gpu_python") if config == "zero2" else sys.executable
    launch = [python, *accelerate(config, processes, tmp_path, on_cpu=True)]
    several = _train(launch, tiny_model, tmp_path, processes, "--given-rollouts", **SGD), tmp_path
    for name in ("loss", "reward", "reward/rank_02", "frac_rank_zero_std", "grad_norm", "kl"):
        first, second = ([row[name] for row in side[0]["log"] if name in row] for side in (alone, several))
        assert len(first) == 3
        assert second == pytest.approx(first, rel=1e-3, abs=1e-6), name
    first, second = (load_file(side[1] / "final" / "model.safetensors") for side in (alone, several))
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_a_training_with_fsdp2_resumes(tiny_model, tmp_path):
    """The rollouts are sampled, so the random states count, too."""
    outputs = tmp_path / "undisturbed", tmp_path / "resumed"
    options = {**SGD, "optim": "adamw_torch", "save_strategy": "steps", "save_steps": 2}
    for output in outputs:
        launch = [sys.executable, *accelerate("fsdp2", 2, tmp_path, on_cpu=True)]
        _train(launch, tiny_model, output, 2, steps=4, **options)
        if output == outputs[0]:
            shutil.copytree(output / "checkpoint-2", outputs[1] / "checkpoint-2")
            written = (outputs[1] / "checkpoint-2").stat().st_mtime_ns
    assert (outputs[1] / "checkpoint-2").stat().st_mtime_ns == written  # not trained again
    first, second = (load_file(output / "final" / "model.safetensors") for output in outputs)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0, msg=name)
