"""ZeRO-3 in one process, stopped and resumed, against a plain training at once."""

import json

import pytest
import torch
from safetensors.torch import load_file

from convrec.training.callbacks import HistoryCallback, read_history
from tests.training.rl.launches import accelerate, run_program
from tests.training.rl.tiny import given_rollouts, tiny_trainer, varied_rows
from tests.training.tiny_sft import make_tiny, train_tiny

pytestmark = pytest.mark.nightly
STEPS = 2
OWN = {"optim": "sgd", "learning_rate": 0.05, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 3}


def _plain(kind, model, folder, options):
    """Return the losses, and the weights before and after, of a training in this process."""
    if kind == "sft":
        history = HistoryCallback(folder / "history.jsonl", lambda *_: None)
        final = train_tiny(make_tiny(), folder, STEPS, callbacks=[history], **options)
        return _losses(read_history(folder / "history.jsonl")), dict(make_tiny().named_parameters()), _weights(final)
    rollouts = {"rollout_func": given_rollouts}
    trainer = tiny_trainer(model, folder, STEPS, rows=varied_rows(), trl=rollouts, **options)
    trainer.train()
    trainer.save_model(str(folder / "final"))
    return _losses(trainer.state.log_history), _weights(model), _weights(folder / "final")


def _sharded(kind, python, model, folder, options, device):
    """Return the losses and the weights of a training by DeepSpeed that stops after each step."""
    program = ["tests.training.tiny_sft"]
    if kind == "rank_grpo":
        program = ["tests.training.rl.tiny", "--model", str(model), "--given-rollouts"]
    program += ["--output", str(folder), "--options", json.dumps(options)]
    for steps in range(1, STEPS + 1):
        launch = accelerate("zero3", 1, folder, on_cpu=device == "cpu")
        run_program([python, *launch, *program, "--steps", str(steps)], on_cpu=device == "cpu")
    if kind == "sft":
        return _losses(read_history(folder / "history.jsonl")), _weights(folder / "final")
    return _losses(json.loads((folder / "history.json").read_text())["log"]), _weights(folder / "final")


def _losses(log):
    return [float(row["loss"]) for row in log if "loss" in row]


def _weights(folder):
    return load_file(folder / "model.safetensors")


def _distance(one, other):
    return sum(float((one[name] - value).float().square().sum()) for name, value in other.items()) ** 0.5


def test_one_process_of_two_writes_a_model_after_the_training(python_with, tiny_model, device, tmp_path):
    """As where no checkpoint is better than the start. The other process takes no part in loading it."""
    launch = accelerate("zero3", 2, tmp_path, on_cpu=device == "cpu")
    options = json.dumps(OWN | {"use_cpu": device == "cpu", "per_device_train_batch_size": 8})
    own = ["--model", str(tiny_model), "--output", str(tmp_path), "--steps", "1", "--options", options, "--export"]
    program = ["tests.training.rl.tiny", "--given-rollouts", *own]
    run_program([python_with("deepspeed"), *launch, *program], on_cpu=device == "cpu")
    start, written = _weights(tiny_model), _weights(tmp_path / "start")
    assert start.keys() == written.keys() and all(torch.equal(start[name], written[name]) for name in start)


@pytest.mark.parametrize("kind", ["sft", "rank_grpo"])
@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_it_trains_as_without_it_when_it_is_resumed(python_with, tiny_model, device, tmp_path, kind, bf16, figure):
    """In bfloat16, ZeRO rounds the weights that autocast keeps, so only the losses are compared."""
    python = python_with("deepspeed")
    options = {"bf16": bf16} | ({"device": device} if kind == "sft" else OWN | {"use_cpu": device == "cpu"})
    folders = tmp_path / "plain", tmp_path / "zero3"
    for folder in folders:
        folder.mkdir()
    losses, start, weights = _plain(kind, tiny_model, folders[0], options)
    own_losses, own = _sharded(kind, python, tiny_model, folders[1], options, device)
    rel, least = (0.02, 2e-3) if bf16 else (1e-3, 1e-6)
    assert len(losses) == STEPS and own_losses == pytest.approx(losses, rel=rel, abs=least)
    error = _distance(own, weights) / _distance(weights, start)
    figure(f"ZeRO-3, {kind}, {'bf16' if bf16 else 'float32'}: the update differs by {error:.2%}")
    assert all(torch.isfinite(value).all() for value in own.values())
    assert bf16 or error < 0.01
