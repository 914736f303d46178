"""Really killed processes end in the same weights as an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from convrec.training.checkpoints import CompletionCallback, best_checkpoint, has_ended, last_checkpoint

STEPS = 14  # of batches of 4 prompts among 16 rows, each used twice: it ends in the second epoch
OPTIONS = {
    "num_iterations": 2,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 16,
    "save_strategy": "steps",
    "save_total_limit": 2,
    "decay_step": 7,
    "decayed_learning_rate": 1e-3,
    "repetition_penalty": 1.2,
}


def _start(
    model: Path, output: Path, processes: int, save_steps: int = 2, seconds_between_steps: float = 0.0
) -> subprocess.Popen:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [
        sys.executable,
        *(launch if processes > 1 else []),
        "-m",
        "tests.training.rl.tiny",
        "--model",
        str(model),
    ]
    options = {**OPTIONS, "per_device_train_batch_size": 16 // processes, "save_steps": save_steps}
    command += ["--output", str(output), "--steps", str(STEPS), "--options", json.dumps(options)]
    command += ["--seconds-between-steps", str(seconds_between_steps)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _kill_after(process: subprocess.Popen, step: int) -> None:
    for line in process.stdout:
        if line.strip() == f"step {step}":
            for victim in [process, *psutil.Process(process.pid).children(recursive=True)]:
                victim.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.fixture(scope="module", params=[1, 2])
def undisturbed(request, tiny_model, tmp_path_factory) -> tuple[int, bytes]:
    """The number of processes, and the weights that they end in where nothing disturbs them."""
    output = tmp_path_factory.mktemp("undisturbed")
    training = _start(tiny_model, output, request.param)
    training.communicate(timeout=300)
    assert training.returncode == 0
    return request.param, (output / "final" / "model.safetensors").read_bytes()


def _finish(model: Path, output: Path, processes: int) -> tuple[str, bytes]:
    """Run a training to its end; return the first step that it does, and its weights."""
    training = _start(model, output, processes)
    steps = [line for line in training.communicate(timeout=300)[0].split("\n") if line.startswith("step")]
    assert training.returncode == 0
    return steps[0], (output / "final" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_training_killed_twice_ends_in_the_same_weights(undisturbed, tiny_model, tmp_path):
    processes, expected = undisturbed
    _kill_after(_start(tiny_model, tmp_path, processes), 5)
    assert last_checkpoint(tmp_path).name == "checkpoint-4"
    _kill_after(_start(tiny_model, tmp_path, processes), 11)  # in the second epoch, after the rate has dropped
    first, result = _finish(tiny_model, tmp_path, processes)
    assert first == "step 11"
    assert result == expected != (tiny_model / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_training_told_to_end_stops_at_a_checkpoint_and_goes_on_from_there(undisturbed, tiny_model, tmp_path):
    processes, expected = undisturbed
    process = _start(tiny_model, tmp_path, processes, save_steps=100, seconds_between_steps=0.5)
    for line in process.stdout:
        if line.strip() == "step 4":
            process.terminate()
    assert process.wait() != 0
    stopped = int(last_checkpoint(tmp_path).name.removeprefix("checkpoint-"))
    assert 4 <= stopped < STEPS and stopped % 2 == 0, "with the last step of the rollout in which the signal came"
    first, result = _finish(tiny_model, tmp_path, processes)
    assert first == f"step {stopped + 1}", "all processes stopped alike"
    assert result == expected


@pytest.fixture
def checkpoints(tmp_path) -> Path:
    for step, best in ((2, 2), (10, 2), (12, 12)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = {"best_global_step": best, "global_step": step, "max_steps": 12}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        if step < 12:
            CompletionCallback().on_save(
                SimpleNamespace(output_dir=tmp_path),
                SimpleNamespace(global_step=step, is_world_process_zero=True),
                None,
            )
    return tmp_path


def test_a_checkpoint_cut_short_is_not_resumed(checkpoints):
    assert last_checkpoint(checkpoints).name == "checkpoint-10"
    assert last_checkpoint(checkpoints / "nowhere") is None


def test_a_checkpoint_half_removed_is_not_resumed(checkpoints):
    (checkpoints / "checkpoint-10" / "trainer_state.json").unlink()
    assert last_checkpoint(checkpoints).name == "checkpoint-2"


def test_a_training_has_ended_at_its_last_step_or_where_it_is_stopped(checkpoints):
    assert not has_ended(checkpoints / "checkpoint-10")
    assert has_ended(checkpoints / "checkpoint-10", stop_step=10)
    assert has_ended(checkpoints / "checkpoint-12")


def test_the_best_checkpoint_is_what_the_last_complete_one_names(checkpoints):
    assert best_checkpoint(checkpoints).name == "checkpoint-2"
