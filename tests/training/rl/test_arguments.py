"""Options and rewards that the trainer refuses before it trains."""

import pytest
from trl import GRPOConfig

from convrec.training.rl.arguments import PUBLISHED, RankGRPOConfig
from convrec.training.rl.rewards import RankReward
from convrec.training.rl.trainer import RankGRPOTrainer
from tests.training.rl.tiny import CATALOG


@pytest.fixture
def config(tmp_path):
    return lambda **options: RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **options)


REFUSED = {"top_entropy_quantile": 0.5, "use_bias_correction_kl": True, "loss_type": "dapo", "top_p": 0.9}
REFUSED |= {"remove_unused_columns": True, "algorithm": "ppo", "disable_dropout": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({name: value}, name) for name, value in REFUSED.items()),
        ({"num_iterations": 2, "save_strategy": "steps", "save_steps": 3}, "save_steps = 3 is not a multiple of 2"),
    ],
)
def test_options_that_would_not_hold_are_refused(config, options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_the_published_clip_ranges_are_the_defaults(config):
    for algorithm, published in PUBLISHED.items():
        found = config(algorithm=algorithm)
        assert (found.epsilon, found.epsilon_high) == (published.epsilon, published.epsilon_high)


def test_a_reference_without_weights_is_refused(make, monkeypatch):
    """What FSDP2 would load on the first process only."""
    launched = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="fsdp_cpu_ram_efficient_loading = true.*set it to false in the launch file"):
        make(beta=0.1)


def test_a_reward_without_ranks_and_the_arguments_of_trl_are_refused(config, tmp_path):
    with pytest.raises(ValueError, match="rank reward"):
        RankGRPOTrainer("model", lambda **_: [0.0], config())
    with pytest.raises(TypeError, match="args is a GRPOConfig; pass a RankGRPOConfig"):
        RankGRPOTrainer("model", RankReward(CATALOG, 20), GRPOConfig(str(tmp_path), use_cpu=True))
