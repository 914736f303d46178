import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from trl import DPOConfig, DPOTrainer

from convrec.generation.pretrained import load_tokenizer
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.preference_trainer import PreferenceTrainer
from tests.training.rl.tiny import NUM_RANKS, make_constraint, same_rows, series, varied_rows, weights


@pytest.fixture
def make(make, tiny_model):
    """Makes preference trainers of the tiny model."""
    own = {"kind": PreferenceTrainer, "algorithm": "grpo", "beta": 0.1}
    own |= {"num_generations": 2, "per_device_train_batch_size": 8}
    return lambda steps=1, **options: make(steps, constraint=make_constraint(tiny_model), **{**own, **options})


def _asked(trainer, rows) -> list[list[int]]:
    """Have the trainer work on these rows; return the tokens of their prompts."""
    trainer._rows = rows
    texts = [row["prompt"] for row in rows]
    return trainer._tokenizer.apply_chat_template(texts, add_generation_prompt=True, return_dict=True)["input_ids"]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 4}])
def test_dpo_steps_as_trl_s_own_trainer_does(make, tiny_model, tmp_path, monkeypatch, options):
    sgd = {"optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 1e9}
    ours = make(2, rows=varied_rows(), beta=0.5, **sgd, **options)
    for policy in (ours.model, ours.ref_model):  # sampled under the constraint, but every token is scored
        add_log_prob_head(policy, 1.0, 1.0, None)
    pairs, groups = [], PreferenceTrainer._complete

    def recorded(trainer, prompt_ids, num_generations):
        lists = groups(trainer, prompt_ids, num_generations)
        texts = trainer._tokenizer.batch_decode(lists, skip_special_tokens=True)
        prompts = [row["prompt"] for row in trainer._rows[::2]]
        answers = ([{"role": "assistant", "content": text}] for text in texts)
        pairs.extend({"prompt": prompt, "chosen": next(answers), "rejected": next(answers)} for prompt in prompts)
        return lists

    monkeypatch.setattr(PreferenceTrainer, "_complete", recorded)
    ours.train()
    assert len(pairs) == 8 and any(pair["chosen"] != pair["rejected"] for pair in pairs)
    arguments = DPOConfig(str(tmp_path / "trl"), beta=0.5, per_device_train_batch_size=4, max_steps=2, use_cpu=True,
        bf16=False, lr_scheduler_type="constant", report_to="none", disable_tqdm=True, save_strategy="no",
        logging_steps=1, gradient_checkpointing=False, train_sampling_strategy="sequential", **sgd)  # fmt: skip
    tokenizer = load_tokenizer(tiny_model)
    theirs = DPOTrainer(
        str(tiny_model), args=arguments, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer
    )
    theirs.train()
    assert series(ours, "loss") == pytest.approx(series(theirs, "loss"), rel=1e-4)
    start = load_file(tiny_model / "model.safetensors")
    for (name, mine), other in zip(weights(ours).items(), weights(theirs).values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6, msg=name)
        assert name not in start or not torch.equal(mine, start[name]), name


def test_what_was_liked_against_a_wish_is_not_preferred(make):
    said = [{"role": "user", "content": "made before 2010"}]  # Dune, which is liked, is of 2021
    rows = [{**row, "seen_titles": [], "conversation": said} for row in same_rows()]
    dune = [{"title": "Dune", "year": 2021}]
    trainer = make(1, rows=Dataset.from_list([{**row, "groundtruth": dune} for row in rows]))
    trainer.train()
    assert np.isfinite(series(trainer, "loss")).all()


@pytest.mark.parametrize("options", [{}, {"beta": 1.0, "num_generations": 4}, {"adapted": True}])
def test_what_was_liked_comes_to_the_top(make, options):
    if options.pop("adapted", False):
        options["trl"] = {"peft_config": LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.0)}
    trainer = make(24, rows=same_rows(), **options)  # all like Up, then Dune, and have seen Heat
    trainer.train()
    assert series(trainer, "preferences/margin")[0] == pytest.approx(0, abs=1e-4)
    assert max(series(trainer, "preferences/margin")) > 0.1
    for name, value in (("in_catalog", 1), ("items", NUM_RANKS), ("duplicates", 0), ("seen", 0)):
        assert set(series(trainer, f"lists/{name}")) == {value}, name
    prompts = _asked(trainer, [trainer.train_dataset[0]] * 32)
    trainer._constraint.begin(prompts, trainer._rows)
    written = super(PreferenceTrainer, trainer)._complete(prompts, 32)  # by the policy
    texts = trainer._tokenizer.batch_decode(written, skip_special_tokens=True)
    assert sum(text.startswith("Up") for text in texts) > 20  # of 32, where a third would be chance


def test_the_first_list_of_a_group_is_the_preferred_one_and_the_others_are_the_reference_s(make):
    trainer = make(rows=varied_rows(), num_generations=4)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.fill_(torch.nan)  # whoever samples from the policy fails
    rows = [trainer.train_dataset[i] for i in (0, 5) for _ in range(4)]
    prompts = _asked(trainer, rows)
    lists, _ = trainer._generate_single_turn(prompts, None, {}, 4)
    for first in (0, 4):
        row, banned = rows[first], trainer._constraint.request(prompts[first]).banned
        assert lists[first] == trainer._preferred.prefer(lists[first + 1], row["groundtruth"], banned)
        title = row["groundtruth"][0]["title"]
        opening = trainer._tokenizer.decode(lists[first]).split(" (")[0]
        assert (opening == title) == (title not in row["seen_titles"])
