"""Really killed processes end in the same weights as an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from convrec.training.checkpoints import best_checkpoint, last_checkpoint

STEPS = 14  # of batches of 4 prompts among 16 rows, each used twice: it ends in the second epoch
OPTIONS = {
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 16,
    "save_strategy": "steps",
    "save_steps": 2,
    "save_total_limit": 2,
    "decay_step": 7,
    "decayed_learning_rate": 1e-3,
    "repetition_penalty": 1.2,
}


def _start(model: Path, output: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "tests.rl.tiny", "--model", str(model), "--output", str(output)]
    command += ["--steps", str(STEPS), "--options", json.dumps(OPTIONS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def _kill_after(process: subprocess.Popen, step: int) -> None:
    for line in process.stdout:
        if line.strip() == f"step {step}":
            os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_training_killed_twice_ends_in_the_same_weights(tiny_model, tmp_path):
    undisturbed = _start(tiny_model, tmp_path / "one")
    undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0
    _kill_after(_start(tiny_model, tmp_path / "two"), 5)
    assert last_checkpoint(tmp_path / "two").name == "checkpoint-4"
    _kill_after(_start(tiny_model, tmp_path / "two"), 11)  # in the second epoch, after the rate has dropped
    last = _start(tiny_model, tmp_path / "two")
    steps = last.communicate(timeout=300)[0].split("\n")
    assert last.returncode == 0 and steps[0] == "step 11"
    results = [(tmp_path / name / "final" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert results[0] == results[1] != (tiny_model / "model.safetensors").read_bytes()


@pytest.fixture
def checkpoints(tmp_path) -> Path:
    for step, best in ((2, 2), (10, 2), (12, 12)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(json.dumps({"best_global_step": best}))
        if step < 12:
            (folder / "complete").touch()
    return tmp_path


def test_a_checkpoint_cut_short_is_not_resumed(checkpoints):
    assert last_checkpoint(checkpoints).name == "checkpoint-10"
    assert last_checkpoint(checkpoints / "nowhere") is None


def test_the_best_checkpoint_is_what_the_last_complete_one_names(checkpoints):
    assert best_checkpoint(checkpoints).name == "checkpoint-2"
