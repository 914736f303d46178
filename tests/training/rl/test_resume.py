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

from convrec.training.checkpoints import CompletionCallback, best_step, has_ended, last_checkpoint

STEPS = 14  # of batches of 4 prompts among 16 rows, each used twice: it ends in the second epoch
OPTIONS = {"num_iterations": 2, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_total_limit": 2}
OPTIONS |= {"decay_step": 7, "decayed_learning_rate": 1e-3, "repetition_penalty": 1.2}


def _start(model: Path, output: Path, processes: int, save_steps: int = 2, seconds: float = 0.0) -> subprocess.Popen:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    options = {**OPTIONS, "per_device_train_batch_size": 16 // processes, "save_steps": save_steps}
    command = [sys.executable, *(launch if processes > 1 else []), "-m", "tests.training.rl.tiny"]
    command += ["--model", str(model), "--output", str(output), "--steps", str(STEPS)]
    command += ["--options", json.dumps(options), "--seconds-between-steps", str(seconds)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)


def _finish(model: Path, output: Path, processes: int) -> tuple[str, bytes]:
    """Run a training to its end; return the first step that it does, and its weights."""
    training = _start(model, output, processes)
    steps = [line for line in training.communicate(timeout=300)[0].split("\n") if line.startswith("step")]
    assert training.returncode == 0
    return steps[0], (output / "final" / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_that_is_killed_and_told_to_end_ends_in_the_same_weights(tiny_model, tmp_path, processes):
    """Told to end, it saves after the last step of the rollout in which the signal came, in all processes alike."""
    first, expected = _finish(tiny_model, tmp_path / "undisturbed", processes)
    assert first == "step 1" and expected != (tiny_model / "model.safetensors").read_bytes()
    folder = tmp_path / "disturbed"
    process = _start(tiny_model, folder, processes)
    for line in process.stdout:
        if line.strip() == "step 5":
            for victim in [process, *psutil.Process(process.pid).children(recursive=True)]:
                victim.kill()
    assert process.wait() == -signal.SIGKILL and last_checkpoint(folder).name == "checkpoint-4"
    process = _start(tiny_model, folder, processes, save_steps=100, seconds=0.5)
    for line in process.stdout:
        if line.strip() == "step 8":  # in the second epoch, after the rate has dropped
            process.terminate()
    assert process.wait() != 0
    stopped = int(last_checkpoint(folder).name.removeprefix("checkpoint-"))
    assert 8 <= stopped < STEPS and stopped % 2 == 0
    assert _finish(tiny_model, folder, processes) == (f"step {stopped + 1}", expected)


def test_the_checkpoints_of_a_folder_that_are_whole_last_best_and_the_end(tmp_path):
    for step, best in ((2, 2), (10, 2), (12, 12)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        state = {"best_global_step": best, "global_step": step, "max_steps": 12}
        (folder / "trainer_state.json").write_text(json.dumps(state))
        if step < 12:
            state = SimpleNamespace(global_step=step, is_world_process_zero=True)
            CompletionCallback().on_save(SimpleNamespace(output_dir=tmp_path), state, None)
    assert last_checkpoint(tmp_path).name == "checkpoint-10", "the last was cut short"
    assert last_checkpoint(tmp_path / "nowhere") is None
    assert best_step(tmp_path) == 2
    assert not has_ended(tmp_path / "checkpoint-10") and has_ended(tmp_path / "checkpoint-12")
    assert has_ended(tmp_path / "checkpoint-10", stop_step=10)
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert last_checkpoint(tmp_path).name == "checkpoint-2"
