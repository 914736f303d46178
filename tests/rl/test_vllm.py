"""Rollouts by vLLM, colocated with the trainer, through its CPU build."""

import json

import pytest


def test_colocated_vllm_samples_from_the_weights_that_are_trained(run_module, tiny_model, tmp_path):
    """After large updates both engines agree on the log-probabilities, the repetition penalty included."""
    options = {"use_vllm": True, "vllm_max_model_length": 64, "learning_rate": 0.01, "repetition_penalty": 1.2}
    where = ("--model", tiny_model, "--output", tmp_path)
    run_module("tests.rl.tiny_vllm", *where, "--steps", 4, "--options", json.dumps(options))
    log = [row for row in json.loads((tmp_path / "history.json").read_text())["log"] if "loss" in row]
    assert len(log) == 4 and log[-1]["kl"] > 0.01, "the policy has moved"
    for row in log:
        assert row["sampling/sampling_logp_difference/mean"] < 1e-3
        assert row["sampler/weight_mean"] == pytest.approx(1, abs=1e-2)
        assert row["sampler/truncated"] == 0
