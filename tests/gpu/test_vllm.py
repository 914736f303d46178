"""Rollouts by vLLM, colocated with the trainer or by a server: on a GPU, or through its CPU build."""

import json
import os
import signal
import subprocess
from contextlib import contextmanager

import pytest

from tests.registry.tracking.server import free_port
from tests.small_project import ROOT
from tests.training.rl.launches import run_program

pytestmark = pytest.mark.nightly


def _train(python, model, output, device, dtype, *flags, **options):
    """Return the log of four steps with updates that move the policy far."""
    own = {"use_vllm": True, "vllm_max_model_length": 64, "learning_rate": 0.01, "repetition_penalty": 1.2}
    own |= {"use_cpu": device == "cpu", "vllm_gpu_memory_utilization": 0.3}
    where = ["--model", str(model), "--output", str(output), "--steps", "4"]
    command = [python, "-m", "tests.training.rl.tiny_vllm", *where, "--options", json.dumps(own | options), *flags]
    run_program(command, on_cpu=device == "cpu", CONVREC_TEST_DTYPE=dtype)
    return [row for row in json.loads((output / "history.json").read_text())["log"] if "loss" in row]


def test_colocated_vllm_samples_from_the_weights_that_are_trained(python_with, tiny_model, device, tmp_path):
    """After large updates both engines agree on the log-probabilities, the repetition penalty included.

    Without the sync of weights, they differ by .3 on average.
    """
    log = _train(python_with("vllm"), tiny_model, tmp_path, device, "float32")
    band = 1e-3 if device == "cpu" else 1e-2  # a GPU multiplies float32 in shorter numbers
    assert len(log) == 4 and log[-1]["kl"] > 0.01, "the policy has moved"
    for row in log:
        assert row["sampling/sampling_logp_difference/mean"] < band
        assert row["sampler/weight_mean"] == pytest.approx(1, abs=10 * band)
        assert row["sampler/truncated"] == 0


def _check_constrained(log, device):
    """Every list is valid, and both engines sample from the same lists, also after large updates."""
    band = 2e-6 if device == "cpu" else 1e-2
    assert len(log) == 4 and log[-1]["kl"] > 0.01, "the policy has moved"
    valid = {"in_catalog": 1, "items": 2, "duplicates": 0, "seen": 0, "early_stop": 0, "overflow": 0}
    for row in log:
        assert {name: row[f"lists/{name}"] for name in valid} == valid
        assert row["sampling/sampling_logp_difference/mean"] < band
        assert row["sampling/sampling_logp_difference/max"] < 10 * band
        assert row["sampler/truncated"] == 0


def test_constrained_lists_of_colocated_vllm_have_the_trainer_s_log_probabilities(
    python_with, tiny_model, device, tmp_path
):
    log = _train(python_with("vllm"), tiny_model, tmp_path, device, "float32", "--constrained")
    _check_constrained(log, device)


@contextmanager
def _server(python, model, log):
    """Start the server of a model, which ends with all its processes; yield its address."""
    port = free_port()
    command = [python, "-m", "tests.training.rl.tiny_vllm", "--serve", str(port), "--model", str(model)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=os.environ, start_new_session=True
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_constrained_lists_of_a_vllm_server_have_the_trainer_s_log_probabilities(
    python_with, tiny_model, device, tmp_path
):
    python = python_with("vllm")
    with _server(python, tiny_model, tmp_path / "server.log") as url:
        options = {"vllm_mode": "server", "vllm_server_base_url": url, "vllm_server_timeout": 100}
        log = _train(python, tiny_model, tmp_path, device, "float32", "--constrained", **options)
    _check_constrained(log, device)


@pytest.mark.gpu
def test_in_bfloat16_the_sampler_s_mismatch_is_small(python_with, tiny_model, device, tmp_path, figure):
    """The weights that correct the mismatch are near 1, in the first step and after the updates."""
    log = _train(python_with("vllm"), tiny_model, tmp_path, device, "bfloat16", bf16=True)
    first, last = (row["sampling/sampling_logp_difference/mean"] for row in (log[0], log[-1]))
    figure(f"vLLM in bf16: log-probabilities differ by {first:.4f} in the first step, {last:.4f} in the fourth")
    assert max(first, last) < 0.05
    for row in log:
        assert row["sampler/weight_mean"] == pytest.approx(1, abs=0.05)
