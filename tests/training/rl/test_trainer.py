from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForSequenceClassification
from trl import GRPOTrainer

from convrec.generation.pretrained import load_tokenizer
from convrec.training.embedded import END
from convrec.training.rl import trainer as trainer_module
from convrec.training.rl.advantages import rank_advantages
from convrec.training.rl.rewards import RankReward, rank_returns
from tests.generation.small import sizes
from tests.training.rl.tiny import (
    CATALOG,
    LINES,
    NUM_RANKS,
    answers,
    given_rollouts,
    make_constraint,
    score_again,
    series,
    tiny_trainer,
    varied_rows,
    weights,
)


def test_rank_grpo_on_policy_with_kl_learns(make):
    trainer = make(steps=25)
    trainer.train()
    hits = series(trainer, "lists/hits")
    assert sum(hits[-5:]) / 5 > 1.5 > 1.2 > sum(hits[:2]) / 2
    assert series(trainer, "kl")[0] < 1e-3 < series(trainer, "kl")[-1]
    assert series(trainer, "lists/in_catalog")[0] > 0.9


@pytest.mark.parametrize(
    ("algorithm", "base"),
    [
        ("grpo", {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.26}),
        ("gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}),
        ("dr_grpo", {"loss_type": "dr_grpo", "epsilon": 0.2, "scale_rewards": "none"}),
        ("dapo", {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28}),
    ],
)
def test_a_baseline_updates_as_trl_s_own_trainer_does(make, algorithm, base):
    shared = {"steps": 4, "num_iterations": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 16}
    shared |= {"optim": "sgd", "learning_rate": 0.1}  # Adam would blow up the rounding of gradients that are zero
    shared |= {"rows": varied_rows(), "trl": {"rollout_func": given_rollouts}}
    ours = make(algorithm=algorithm, **shared)
    ours.train()
    plain = {"beta": 1e-3, "use_bias_correction_kl": False, "temperature": 1.0}
    theirs = make(kind=GRPOTrainer, **shared, **plain, **base)
    theirs.train()
    assert series(ours, "reward") == series(theirs, "reward")
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 16, "num_iterations": 2},
        {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 4},  # a group fills two micro-batches
        {"steps_per_generation": 4, "per_device_train_batch_size": 8},  # four optimiser steps on the same rollouts
        {"repetition_penalty": 1.3, "beta": 0.1},
        {"gradient_checkpointing": True, "adapted": True},
        {"constrained": True, "steps": 1},  # which samples the same lists, as they have the same start
    ],
)
def test_steps_are_those_of_a_trainer_whose_completions_read_their_prompts_anew(
    make, tiny_model, options, monkeypatch, caplog
):
    options = {"steps": 4, "rows": varied_rows(), "optim": "sgd", "learning_rate": 0.1, **options}
    trl = {"rollout_func": given_rollouts}
    if options.pop("adapted", False):
        trl["peft_config"] = LoraConfig(r=2, target_modules="all-linear", lora_dropout=0.0)
    if options.pop("constrained", False):
        trl, options["constraint"] = {}, make_constraint(tiny_model)
    ours = make(trl=trl, **options)
    ours.train()
    monkeypatch.setattr(trainer_module, "share_prompts", lambda model: "the test's plain side")
    with caplog.at_level("INFO", logger="convrec"):
        plain = make(trl=trl, **options)
    assert "prompts are not shared between completions: the test's plain side" in caplog.text
    plain.train()
    assert series(ours, "loss") == pytest.approx(series(plain, "loss"), rel=1e-4, abs=1e-6)
    torch.testing.assert_close(weights(ours), weights(plain), rtol=1e-4, atol=1e-6)


def test_each_reward_has_advantages_of_its_own_whatever_its_scale(make):
    class Odd(RankReward):
        def _judge(self, completions, groundtruth, seen_titles):
            return (torch.arange(NUM_RANKS) % 2).float().expand(len(completions), -1), {}

    def brevity(completions, **_):
        return [-float(len(completion[0]["content"])) for completion in completions]

    rewards = [RankReward(CATALOG, NUM_RANKS), Odd(CATALOG, NUM_RANKS), brevity]
    trainer = make(steps=1, rewards=rewards, reward_weights=[2.0, 0.5, 0.1], returns="log")
    trainer.train()
    lengths = torch.tensor(brevity(trainer.last_group()[1]))[:, None].expand(-1, NUM_RANKS)
    returns = [*(rank_returns(reward.last_relevance, "log") for reward in rewards[:2]), 1000 * lengths]
    expected = sum(w * rank_advantages(own, 8) for w, own in zip((2.0, 0.5, 0.1), returns, strict=True))
    torch.testing.assert_close(trainer._rank_advantages(8), expected, rtol=1e-3, atol=1e-3)


def test_a_reward_model_beside_the_rank_reward(make):
    config = Qwen2Config(vocab_size=400, num_labels=1, pad_token_id=0, **sizes())
    model = Qwen2ForSequenceClassification(config)
    donor = make()
    model.config._name_or_path = "judge"
    tokenizers = {"reward_processing_classes": [None, donor._tokenizer]}
    trainer = make(rewards=[RankReward(CATALOG, NUM_RANKS), model], trl=tokenizers)
    trainer.train()
    assert len(series(trainer, "rewards/judge/mean")) == 1
    assert trainer._returns[1].std() > 0


def test_groups_of_equal_rewards_neither_dilute_a_step_nor_cost_it(make, monkeypatch):
    """A step on two groups, one of them without a reward, is that of a step on the other alone."""

    def eight_lists(prompts, trainer):
        pairs = [(place % 4, (place + 1 + place // 4 % 2) % 4) for place in range(len(prompts))]
        return answers(prompts, [f"{LINES[one]}\n{LINES[two]}{END}" for one, two in pairs], trainer)

    def stepped(size: int, batch: int) -> tuple[dict, list[int]]:
        rows = [{**row, "seen_titles": []} for row in varied_rows().select(range(size))]
        rows[1:] = [{**row, "groundtruth": [{"title": "Alien", "year": 1979}]} for row in rows[1:]]
        options = {"optim": "sgd", "learning_rate": 0.1, "beta": 0.0, "per_device_train_batch_size": batch}
        trainer = make(rows=Dataset.from_list(rows), trl={"rollout_func": eight_lists}, **options)
        score, seen = trainer._get_per_token_logps_and_entropies, []

        def counting(model, ids, *rest, **named):
            seen.append(len(ids))
            return score(model, ids, *rest, **named)

        monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", counting)
        trainer.train()
        return weights(trainer), seen

    both, seen = stepped(2, 16)
    alone, _ = stepped(1, 8)
    assert seen == [8]
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("multiple", [None, 32])
def test_what_is_trained_is_what_was_sampled_whatever_the_padding(make, monkeypatch, multiple):
    """The sampled log-probabilities are those of `generate` itself; EOS is the pad token."""
    trainer = make(rows=varied_rows(), repetition_penalty=1.5, pad_to_multiple_of=multiple, beta=0.0)
    trainer._tokenizer.pad_token = trainer._tokenizer.eos_token
    trainer.generation_config.pad_token_id = trainer._tokenizer.pad_token_id
    trainer.generation_config.output_logits = trainer.generation_config.output_scores = True
    trainer.generation_config.return_dict_in_generate = True
    sampled = []
    generate = trainer.model.generate

    def recorded(**options):
        output = generate(**options)
        ids = output.sequences[:, -len(output.scores) :, None]
        scores = torch.stack(output.scores, dim=1).log_softmax(2)
        sampled.append(scores.gather(2, ids).squeeze(2))
        return output.sequences

    monkeypatch.setattr(trainer.model, "generate", recorded)
    chosen = [trainer.train_dataset[i] for i in (0, 1, 2, 4) for _ in range(8)]
    batch = trainer._generate_and_score_completions(chosen)
    _, scored, _ = score_again(trainer, batch)
    real = batch["completion_mask"].bool()
    width = sampled[0].shape[1]
    assert not real[:, width:].any()
    torch.testing.assert_close(scored[:, :width][real[:, :width]], sampled[0][real[:, :width]], rtol=1e-3, atol=1e-4)


def test_the_method_s_step_decay(make):
    trainer = make(steps=4, decay_step=2, decayed_learning_rate=1e-4)
    trainer.train()
    assert series(trainer, "learning_rate") == pytest.approx([3e-3, 3e-3, 1e-4, 1e-4])


def test_an_epoch_has_the_same_order_when_training_starts_in_it(make):
    trainer = make()
    orders = []
    for epoch in (0, 1.0, 1.25):
        trainer.state.epoch = epoch
        orders.append(list(trainer._get_train_sampler()))
    assert orders[0] != orders[1] == orders[2]


def test_a_loss_that_is_not_finite_stops_with_good_checkpoints(make, monkeypatch):
    trainer = make(steps=4, save_strategy="steps", save_steps=1)
    real = trainer_module.rank_grpo_loss

    def spoilt(*arguments, **options):
        output = real(*arguments, **options)
        return output._replace(loss=output.loss * float("nan")) if trainer.state.global_step == 2 else output

    monkeypatch.setattr(trainer_module, "rank_grpo_loss", spoilt)
    with pytest.raises(FloatingPointError, match="after step 2.*Lower learning_rate"):
        trainer.train()
    saved = load_file(Path(trainer.args.output_dir) / "checkpoint-2" / "model.safetensors")
    assert all(torch.isfinite(value).all() for value in saved.values())


@pytest.mark.parametrize("aggregation", ["rank", "token"])
def test_a_checkpoint_continues_with_smaller_micro_batches_and_the_same_updates(make, aggregation):
    """Whatever the average is of: the micro-batches hold completions of different lengths."""
    whole = {"save_strategy": "steps", "save_steps": 2, "optim": "sgd", "learning_rate": 0.1, "rows": varied_rows()}
    whole |= {"aggregation": aggregation, "trl": {"rollout_func": given_rollouts}}
    trainer = make(4, **whole, per_device_train_batch_size=32)
    trainer.train()
    other = make(4, **whole, per_device_train_batch_size=8, gradient_accumulation_steps=4)
    other.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-2"))
    start = load_file(Path(trainer.args.output_dir) / "checkpoint-2" / "model.safetensors")
    results = weights(other)
    torch.testing.assert_close(results, weights(trainer), rtol=1e-4, atol=1e-6)
    assert any((results[name] - value).abs().max() > 1e-4 for name, value in start.items())


def test_the_newline_counts_reach_as_far_as_the_model_s_vocabulary(tiny_model, make, tmp_path):
    """Models may have more ids than their tokenizer names, and sample them."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.resize_token_embeddings(model.config.vocab_size + 40)
    model.save_pretrained(tmp_path / "wide")
    load_tokenizer(tiny_model).save_pretrained(tmp_path / "wide")
    counts = tiny_trainer(tmp_path / "wide", tmp_path / "out")._newline_counts
    assert len(counts) == model.config.vocab_size and counts[-40:].sum() == 0 < counts.sum()
