import inspect

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from convrec.data.catalog import Catalog, Item
from convrec.rl.rewards import RankReward
from convrec.rl.trainer import RankGRPOConfig, RankGRPOTrainer
from convrec.training.embedded import END, make_model, train_tokenizer

NUM_RANKS = 2
CATALOG = Catalog([Item(title, year) for title, year in (("Heat", 1995), ("Up", 2009), ("Dune", 2021), ("Her", 2013))])
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_key_value_heads": 2}


def _trainer(tmp_path, steps: int = 1, **options) -> RankGRPOTrainer:
    """A model that writes catalog lines at random, and users who only like Up and then Dune."""
    lines = [str(item) for item in CATALOG.items]
    tokenizer = train_tokenizer(["\n".join(lines), "a film please"] * 20, CATALOG.items, 300)
    model = make_model(tokenizer, **SIZES, seed=0)
    pairs = [f"{one}\n{two}{END}" for one in lines for two in lines]
    batch = tokenizer(
        [f"<|user|>a film please{END}<|assistant|>{pair}" for pair in pairs], padding=True, return_tensors="pt"
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for _ in range(60):
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    row = {
        "prompt": [{"role": "user", "content": "a film please"}],
        "groundtruth": [{"title": "Up", "year": 2009}, {"title": "Dune", "year": 2021}],
        "seen_titles": ["Heat"],
    }
    arguments = RankGRPOConfig(
        output_dir=str(tmp_path / "out"),
        **{
            "max_steps": steps,
            "num_ranks": NUM_RANKS,
            "per_device_train_batch_size": 32,
            "num_generations": 8,
            "learning_rate": 3e-3,
            "lr_scheduler_type": "constant",
            "max_completion_length": 32,
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "seed": 1,
            **options,
        },
    )
    return RankGRPOTrainer(
        str(folder),
        RankReward(CATALOG, NUM_RANKS),
        arguments,
        train_dataset=Dataset.from_list([row] * 64),
        processing_class=tokenizer,
    )


def _series(trainer: RankGRPOTrainer, name: str) -> list[float]:
    return [float(row[name]) for row in trainer.state.log_history if name in row]


def test_exp_inf_on_policy_with_kl_learns(tmp_path):
    trainer = _trainer(tmp_path, steps=25)
    trainer.train()
    rewards = _series(trainer, "reward")
    assert sum(rewards[-5:]) / 5 > 1.5 > 1.2 > sum(rewards[:2]) / 2
    assert _series(trainer, "kl")[0] < 1e-3 < _series(trainer, "kl")[-1]
    assert len(_series(trainer, "reward/rank_02")) == 25


def test_several_updates_of_one_batch_use_the_importance_ratio(tmp_path):
    trainer = _trainer(tmp_path, steps=4, num_iterations=2)
    trainer.train()
    ratios = _series(trainer, "ratio/mean")
    assert ratios[0] == pytest.approx(1, abs=1e-4) and abs(ratios[1] - 1) > 1e-6


def test_the_method_s_step_decay(tmp_path):
    trainer = _trainer(tmp_path, steps=4, decay_step=2, decayed_learning_rate=1e-4)
    trainer.train()
    assert _series(trainer, "learning_rate") == pytest.approx([3e-3, 3e-3, 1e-4, 1e-4])


@pytest.mark.parametrize(
    ("option", "value"), [("top_entropy_quantile", 0.5), ("use_bias_correction_kl", True), ("entropy_coef", 0.1)]
)
def test_base_options_without_effect_are_refused(tmp_path, option, value):
    with pytest.raises(ValueError, match=option):
        _trainer(tmp_path, **{option: value})


def test_another_reward_is_refused(tmp_path):
    with pytest.raises(ValueError, match="RankReward"):
        RankGRPOTrainer("model", lambda **_: [0.0], RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False))


def test_the_overridden_methods_are_those_of_the_pinned_trl():
    expected = {
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "_generate_and_score_completions": ["self", "inputs"],
        "_compute_loss": ["self", "model", "inputs"],
        "create_scheduler": ["self", "num_training_steps", "optimizer"],
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == parameters
