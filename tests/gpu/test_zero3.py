"""ZeRO-3 in one process: the steps of a plain training, and a resume that ends in the same weights."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from convrec.training.callbacks import read_history
from tests.rl.launches import accelerate, run_program
from tests.training.tiny_sft import make_tiny

pytestmark = pytest.mark.vllm
PLAIN = {"optim": "sgd", "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 3}


class Training:
    """One of the two trainings as a program that a launch runs, or this Python."""

    def __init__(self, kind, tiny_model, device, bf16):
        self._module = {"sft": "tests.training.tiny_sft", "rank_grpo": "tests.rl.tiny"}[kind]
        self._is_sft, self._on_cpu = kind == "sft", device == "cpu"
        own = {"device": device} if self._is_sft else PLAIN | {"use_cpu": self._on_cpu}
        self._more = [] if self._is_sft else ["--model", str(tiny_model), "--given-rollouts"]
        self._options = json.dumps(own | {"bf16": bf16})
        self.start = make_tiny().state_dict() if self._is_sft else load_file(tiny_model / "model.safetensors")

    def run(self, output, steps, python=None):
        """Train to a step, resuming what is in the folder; with a Python, by DeepSpeed. Return losses and weights."""
        output.mkdir(exist_ok=True)
        launch = [sys.executable, "-m"]
        if python is not None:
            launch = [python, *accelerate("zero3", 1, output, on_cpu=self._on_cpu)]
        program = [self._module, *self._more, "--output", str(output), "--steps", str(steps), "--options"]
        run_program([*launch, *program, self._options], on_cpu=self._on_cpu)
        if self._is_sft:
            log = read_history(output / "history.jsonl")
        else:
            log = json.loads((output / "history.json").read_text())["log"]
        return [row["loss"] for row in log if "loss" in row], load_file(output / "final" / "model.safetensors")


def _distance(one, other):
    return sum(float((one[name] - value).float().square().sum()) for name, value in other.items() if name in one) ** 0.5


@pytest.mark.parametrize("kind", ["sft", "rank_grpo"])
@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_it_trains_as_without_it_and_resumes(python_with, tiny_model, device, tmp_path, kind, bf16):
    """In bfloat16, ZeRO rounds the weights of the forward pass, which autocast keeps."""
    training, python = Training(kind, tiny_model, device, bf16), python_with("deepspeed")
    losses, weights = training.run(tmp_path / "plain", 2)
    sharded, own = training.run(tmp_path / "zero3", 2, python)
    rel, least = (0.02, 2e-3) if bf16 else (1e-3, 1e-6)
    assert len(losses) == 2 and sharded == pytest.approx(losses, rel=rel, abs=least)
    if not bf16:  # saved in bfloat16, weights are too coarse to show two updates
        assert 100 * _distance(own, weights) < _distance(weights, training.start)
    training.run(tmp_path / "resumed", 1, python)
    first, resumed = training.run(tmp_path / "resumed", 2, python)
    assert first[-1] == pytest.approx(sharded[-1], rel=1e-5)
    for name, value in own.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-5, atol=1e-7, msg=name)
