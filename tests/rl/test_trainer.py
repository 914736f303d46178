import inspect
from contextlib import nullcontext

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForSequenceClassification
from trl import GRPOConfig, GRPOTrainer

from convrec.data.catalog import Catalog, Item
from convrec.rl import trainer as trainer_module
from convrec.rl.advantages import rank_advantages
from convrec.rl.arguments import PUBLISHED, RankGRPOConfig
from convrec.rl.rewards import RankReward, rank_returns
from convrec.rl.trainer import RankGRPOTrainer
from convrec.training.embedded import END, make_model, train_tokenizer

NUM_RANKS = 2
CATALOG = Catalog([Item(title, year) for title, year in (("Heat", 1995), ("Up", 2009), ("Dune", 2021), ("Her", 2013))])
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_key_value_heads": 2}


def _trainer(
    tmp_path, steps: int = 1, rewards=None, kind=RankGRPOTrainer, peft_config=None, reward_tokenizer=None, **options
) -> GRPOTrainer:
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
    config = RankGRPOConfig if kind is RankGRPOTrainer else GRPOConfig
    ours = {"num_ranks": NUM_RANKS} if kind is RankGRPOTrainer else {}
    arguments = config(
        output_dir=str(tmp_path / "out"),
        **{
            "max_steps": steps,
            **ours,
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
    return kind(
        str(folder),
        rewards or RankReward(CATALOG, NUM_RANKS),
        arguments,
        train_dataset=Dataset.from_list([row] * 64),
        processing_class=tokenizer,
        peft_config=peft_config,
        reward_processing_classes=[None, reward_tokenizer] if reward_tokenizer else None,
    )


def _series(trainer: RankGRPOTrainer, name: str) -> list[float]:
    return [float(row[name]) for row in trainer.state.log_history if name in row]


def _weights(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


@pytest.mark.parametrize(
    "returns", [{"returns": "exp_inf"}, {"returns": "exp", "return_gamma": 2.0}, {"returns": "log"}]
)
def test_rank_grpo_on_policy_with_kl_learns(tmp_path, returns):
    trainer = _trainer(tmp_path, steps=25, **returns)
    trainer.train()
    hits = _series(trainer, "lists/hits")
    assert sum(hits[-5:]) / 5 > 1.5 > 1.2 > sum(hits[:2]) / 2
    assert _series(trainer, "kl")[0] < 1e-3 < _series(trainer, "kl")[-1]
    assert _series(trainer, "lists/in_catalog")[0] > 0.9


def test_every_step_logs_what_the_readme_promises(tmp_path):
    trainer = _trainer(tmp_path, steps=2)
    trainer.train()
    names = ["reward/rank_02", "reward_std/rank_02", "reward", "frac_rank_zero_std", "kl", "entropy", "clip_ratio/low"]
    names += ["clip_ratio/high", "ratio/q05", "ratio/q50", "ratio/q95", "ratio/effective_sample_size", "lists/items"]
    names += ["lists/overflow", "lists/early_stop", "lists/in_catalog", "lists/duplicates", "seconds/rollout"]
    names += ["seconds/reward", "seconds/forward", "seconds/update", "tokens_per_second"]
    for name in names:
        assert len(_series(trainer, name)) == 2, name
    assert all(_series(trainer, "seconds/update")[i] > 0 for i in range(2))


def test_several_updates_of_one_batch_use_the_importance_ratio(tmp_path):
    trainer = _trainer(tmp_path, steps=4, num_iterations=2)
    trainer.train()
    ratios = _series(trainer, "ratio/mean")
    assert ratios[0] == pytest.approx(1, abs=1e-4) and abs(ratios[1] - 1) > 1e-6


@pytest.mark.parametrize(
    ("algorithm", "base"),
    [
        ("grpo", {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.26}),
        ("gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}),
        ("dr_grpo", {"loss_type": "dr_grpo", "epsilon": 0.2, "scale_rewards": "none"}),
        ("dapo", {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}),
    ],
)
def test_a_baseline_updates_as_trl_s_own_trainer_does(tmp_path, algorithm, base, monkeypatch):
    shared = {"steps": 4, "num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 16}
    shared |= {"optim": "sgd", "learning_rate": 0.1}  # Adam would blow up the rounding of gradients that are zero
    ours = _trainer(tmp_path / "ours", algorithm=algorithm, **shared)
    ours.train()
    plain = {"beta": 1e-3, "use_bias_correction_kl": False, "temperature": 1.0}
    theirs = _trainer(tmp_path / "theirs", kind=GRPOTrainer, **shared, **plain, **base)
    monkeypatch.setattr(theirs, "_generate_single_turn", RankGRPOTrainer._generate_single_turn.__get__(theirs))
    theirs.args.beam_groups, theirs._timed = False, lambda part: nullcontext()
    theirs.train()
    assert _series(ours, "reward") == _series(theirs, "reward")
    for (name, mine), other in zip(_weights(ours).items(), _weights(theirs).values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6, msg=name)


def test_weighted_rank_rewards_and_a_scalar_beside_them(tmp_path):
    def brevity(completions, **_):
        return [-float(len(completion[0]["content"])) for completion in completions]

    rewards = [RankReward(CATALOG, NUM_RANKS), RankReward(CATALOG, NUM_RANKS, year_tolerance=0), brevity]
    for spread in ("ranks", "sequence"):
        options = {"reward_weights": [2.0, 0.5, 0.1], "scalar_rewards": spread, "returns": "log"}
        trainer = _trainer(tmp_path / spread, steps=1, rewards=rewards, **options)
        trainer.train()
        relevance = sum(w * r.last_relevance for w, r in zip((2.0, 0.5), rewards, strict=False))
        scalar = 0.1 * torch.tensor(brevity(trainer.last_rollouts[1]))[:, None]
        returns = rank_returns(relevance, "log")
        if spread == "ranks":
            expected = rank_advantages(returns + scalar / NUM_RANKS, 8)
        else:
            expected = rank_advantages(returns, 8) + rank_advantages(scalar, 8)
        torch.testing.assert_close(trainer._rank_advantages(8), expected)


def test_a_reward_model_beside_the_rank_reward(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=400, num_key_value_heads=2, num_labels=1, pad_token_id=0, **sizes)
    model = Qwen2ForSequenceClassification(config)
    donor = _trainer(tmp_path / "donor")
    model.config._name_or_path = "judge"
    trainer = _trainer(tmp_path, rewards=[RankReward(CATALOG, NUM_RANKS), model], reward_tokenizer=donor._tokenizer)
    trainer.train()
    assert len(_series(trainer, "rewards/judge/mean")) == 1
    assert trainer._scalars.std() > 0


def test_beam_groups(tmp_path):
    trainer = _trainer(tmp_path, steps=2, beam_groups=True)
    trainer.train()
    lists = [completion[0]["content"] for completion in trainer.last_rollouts[1][:8]]
    assert len(set(lists)) == 8


def test_a_repetition_penalty_is_part_of_the_policy(tmp_path):
    trainer = _trainer(tmp_path, steps=2, repetition_penalty=1.5, num_iterations=2)
    trainer.train()
    assert _series(trainer, "ratio/mean")[0] == pytest.approx(1, abs=1e-4)
    assert _series(trainer, "kl")[0] < 1e-4


def test_lora(tmp_path):
    trainer = _trainer(tmp_path, steps=3, peft_config=LoraConfig(r=4, target_modules="all-linear"))
    before = _weights(trainer)
    trainer.train()
    changed = {name for name, value in _weights(trainer).items() if not torch.equal(value, before[name])}
    assert changed and all("lora" in name for name in changed)


def test_the_method_s_step_decay(tmp_path):
    trainer = _trainer(tmp_path, steps=4, decay_step=2, decayed_learning_rate=1e-4)
    trainer.train()
    assert _series(trainer, "learning_rate") == pytest.approx([3e-3, 3e-3, 1e-4, 1e-4])


def test_an_epoch_has_the_same_order_when_training_starts_in_it(tmp_path):
    sampler = _trainer(tmp_path)._get_train_sampler()
    sampler.set_epoch(0)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    assert first != second
    sampler.set_epoch(1)
    assert list(sampler) == second


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_with_good_checkpoints(tmp_path, monkeypatch, bad):
    trainer = _trainer(tmp_path, steps=4, save_strategy="steps", save_steps=1)
    real = trainer_module.rank_grpo_loss

    def spoilt(*arguments, **options):
        output = real(*arguments, **options)
        return output._replace(loss=output.loss * bad) if trainer.state.global_step == 2 else output

    monkeypatch.setattr(trainer_module, "rank_grpo_loss", spoilt)
    with pytest.raises(FloatingPointError, match="after step 2.*Lower learning_rate"):
        trainer.train()
    weights = load_file(tmp_path / "out" / "checkpoint-2" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values())


def test_a_gradient_that_is_not_finite_stops_before_the_update(tmp_path):
    trainer = _trainer(tmp_path)
    before = _weights(trainer)
    trainer.model.model.layers[0].mlp.up_proj.weight.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(FloatingPointError, match="gradient's norm is nan"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in _weights(trainer).items())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("top_entropy_quantile", 0.5),
        ("use_bias_correction_kl", True),
        ("entropy_coef", 0.1),
        ("loss_type", "grpo"),
        ("importance_sampling_level", "sequence"),
        ("vllm_importance_sampling_mode", "sequence_mask"),
        ("top_p", 0.9),
        ("scale_rewards", "batch"),
        ("algorithm", "ppo"),
    ],
)
def test_base_options_without_effect_are_refused(tmp_path, option, value):
    with pytest.raises(ValueError, match=option):
        RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **{option: value})


def test_checkpoints_between_shared_rollouts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="save_steps = 3 is no multiple of 2"):
        RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, num_iterations=2, save_strategy="steps", save_steps=3)


def test_a_reward_without_ranks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="rank reward"):
        RankGRPOTrainer("model", lambda **_: [0.0], RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False))


def test_the_published_clip_ranges_are_the_defaults(tmp_path):
    for algorithm, published in PUBLISHED.items():
        config = RankGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, algorithm=algorithm)
        assert (config.epsilon, config.epsilon_high) == (published.epsilon_low, published.epsilon_high)


def test_the_overridden_methods_are_those_of_the_pinned_trl():
    expected = {
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "_generate_and_score_completions": ["self", "inputs"],
        "_generate_single_turn": [
            "self",
            "prompt_ids",
            "images",
            "multimodal_fields",
            "num_generations",
            "has_tool_images",
        ],
        "_compute_loss": ["self", "model", "inputs"],
        "_get_train_sampler": ["self", "dataset"],
        "_get_grad_norm": ["self", "model", "grad_norm"],
        "create_scheduler": ["self", "num_training_steps", "optimizer"],
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == parameters
        assert name in vars(RankGRPOTrainer)
    ours = {n for n, value in vars(RankGRPOTrainer).items() if inspect.isfunction(value) and hasattr(GRPOTrainer, n)}
    assert ours == {*expected, "__init__"}


def test_the_called_methods_are_those_of_the_pinned_trl():
    forward = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters
    assert list(forward)[:7] == [
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ]
