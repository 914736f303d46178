"""Options that the trainer refuses, since they would have no effect or half of one."""

import pytest

from convrec.training.rl.arguments import PUBLISHED, RankGRPOConfig


@pytest.fixture
def config(tmp_path):
    return lambda **options: RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_entropy_quantile": 0.5}, "top_entropy_quantile"),
        ({"use_bias_correction_kl": True}, "use_bias_correction_kl"),
        ({"loss_type": "dapo"}, "loss_type"),
        ({"remove_unused_columns": True}, "remove_unused_columns"),
        ({"top_p": 0.9}, "top_p"),
        ({"algorithm": "ppo"}, "algorithm"),
        ({"disable_dropout": False}, "disable_dropout"),
        ({"decay_step": 3, "decayed_learning_rate": 1e-7, "lr_scheduler_type": "linear"}, "decay_step"),
        ({"returns": "exp"}, "return_gamma"),
        ({"repetition_penalty": 1.2, "use_transformers_continuous_batching": True}, "repetition_penalty"),
        ({"num_iterations": 2, "save_strategy": "steps", "save_steps": 3}, "save_steps = 3 is not a multiple of 2"),
    ],
)
def test_options_that_would_not_hold_are_refused(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_a_beam_group_spread_over_processes_is_refused(config, monkeypatch):
    monkeypatch.setattr(RankGRPOConfig, "world_size", 2)
    options = {"num_generations": 8, "per_device_train_batch_size": 4}
    config(**options)
    with pytest.raises(ValueError, match="beam_groups = True, but the 4 completions of a process are not a multiple"):
        config(beam_groups=True, **options)


def test_the_published_clip_ranges_are_the_defaults(config):
    for algorithm, published in PUBLISHED.items():
        found = config(algorithm=algorithm)
        assert (found.epsilon, found.epsilon_high) == (published.epsilon, published.epsilon_high)
