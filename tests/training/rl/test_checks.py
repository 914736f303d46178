"""Data and rewards that the trainer refuses before it trains."""

import pytest

from convrec.training.rl.arguments import RankGRPOConfig
from convrec.training.rl.rewards import RankReward
from convrec.training.rl.trainer import RankGRPOTrainer
from tests.training.rl.tiny import (
    CATALOG,
    NUM_RANKS,
    same_rows,
)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (["groundtruth"], "train_dataset has no groundtruth, which reward 'dcg' reads; add it"),
        (["groundtruth", "seen_titles"], "train_dataset has no groundtruth and no seen_titles"),
        (["prompt"], "train_dataset has no prompt, which the trainer reads"),
    ],
)
def test_a_dataset_without_a_column_is_refused(make, missing, message):
    with pytest.raises(ValueError, match=message):
        make(rows=same_rows().remove_columns(missing))


def test_a_column_that_a_reward_names_is_needed_and_an_optional_one_is_not(make):
    def mood(completions, mood, tone=None, **_):
        return [0.0] * len(completions)

    rewards = [RankReward(CATALOG, NUM_RANKS), mood]
    with pytest.raises(ValueError, match="train_dataset has no mood, which reward 'mood' reads"):
        make(rewards=rewards)
    make(rewards=rewards, rows=same_rows().add_column("mood", ["sad"] * 64))


def test_ranks_that_disagree_are_refused(make):
    with pytest.raises(ValueError, match="num_ranks = 2, but reward 0 has 3 ranks"):
        make(rewards=RankReward(CATALOG, 3))


def test_a_reference_without_weights_is_refused(make, monkeypatch):
    """What FSDP2 would load on the first process only."""
    launched = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="fsdp_cpu_ram_efficient_loading = true.*set it to false in the launch file"):
        make(beta=0.1)


def test_a_reward_without_ranks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rank reward"):
        RankGRPOTrainer("model", lambda **_: [0.0], RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False))
