"""DPO and S-DPO: the loss, the preferred lists, and their training."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig
from safetensors.torch import load_file
from trl import DPOConfig, DPOTrainer

from convrec.generation.pretrained import load_tokenizer
from convrec.generation.processors import CatalogConstraint
from convrec.generation.trie import ListRequest, catalog_trie
from convrec.training.embedded import END
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.preferences import PreferenceTrainer, PreferredLists, softmax_dpo_loss
from tests.training.rl.tiny import CATALOG, NUM_RANKS, make_constraint, same_rows, series, varied_rows, weights

HEAT, UP, DUNE, HER = range(4)


@pytest.mark.parametrize("num_rejected", [1, 3])
def test_loss_and_gradient_are_those_of_the_published_formulas_in_a_loop(num_rejected):
    draw = torch.Generator().manual_seed(0)
    policy, reference = (torch.randn(5, 1 + num_rejected, generator=draw, dtype=torch.float64) for _ in range(2))
    beta, losses = 0.3, []
    ours, plain = policy.clone().requires_grad_(), policy.clone().requires_grad_()
    for row in range(5):
        chosen = beta * (plain[row, 0] - reference[row, 0])
        rejected = [beta * (plain[row, d] - reference[row, d]) for d in range(1, 1 + num_rejected)]
        if num_rejected == 1:  # DPO
            losses.append(-torch.log(1 / (1 + torch.exp(rejected[0] - chosen))))
        else:  # S-DPO
            total = sum(torch.exp(one - chosen) for one in rejected)
            losses.append(-torch.log(1 / (1 + torch.exp(torch.log(total)))))
    expected = sum(losses) / 5
    loss = softmax_dpo_loss(ours - reference, beta)
    loss.backward(), expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-10, atol=1e-14)


def test_the_loss_of_ratios_far_apart_is_finite():
    far = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    softmax_dpo_loss(far, 1.0).backward()
    assert far.grad.isfinite().all() and far.grad[0, 0] == pytest.approx(-1) and far.grad[0, 1] == pytest.approx(1)


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="module")
def lists(tokenizer):
    return PreferredLists(CATALOG, tokenizer)


@pytest.mark.parametrize(
    ("written", "liked", "banned", "expected"),
    [
        ([HEAT, UP], [("Dune", 2021)], (), [DUNE, HEAT]),
        ([HEAT, UP], [("Up", 2010), ("Dune", None), ("Her", 2013)], (), [UP, DUNE]),  # more than the list holds
        ([HEAT, UP], [("Dune", 2021), ("Her", 2013)], {DUNE}, [HER, HEAT]),
        ([HEAT, UP], [("Jaws", 1975)], (), [HEAT, UP]),  # not in the catalog
        ([HEAT], [{"title": "Up", "year": 2009}], (), [UP]),
    ],
)
def test_what_was_liked_comes_first(lists, written, liked, banned, expected):
    assert lists.items(written, liked, banned) == expected


@given(st.data())
def test_a_preferred_list_may_be_written_under_the_constraint(lists, tokenizer, data):
    """It is as long, without repetition or what is banned, and its tokens are those that the trie lets through."""
    banned = data.draw(st.sets(st.integers(0, 3), max_size=2))
    written = data.draw(st.permutations(sorted({0, 1, 2, 3} - banned)))[: data.draw(st.integers(1, 2))]
    liked = data.draw(st.lists(st.sampled_from([(item.title, item.year) for item in CATALOG.items]), max_size=5))
    items = lists.items(written, liked, banned)
    assert len(items) == len(written) == len(set(items)) and banned.isdisjoint(items)
    completion = lists.tokens(written)
    assert tokenizer.decode(completion) == "\n".join(str(CATALOG.items[item]) for item in written) + END
    assert lists.prefer(completion, liked, banned) == lists.tokens(items)
    trie = catalog_trie(CATALOG, tokenizer)
    processor, ids = CatalogConstraint(trie, [ListRequest(len(items), banned)]), [1, 2]
    for token in lists.tokens(items):
        assert processor(torch.tensor([ids]), torch.zeros(1, len(tokenizer)))[0, token] == 0
        ids.append(token)


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
    rows = Dataset.from_list(pairs)
    theirs = DPOTrainer(str(tiny_model), args=arguments, train_dataset=rows, processing_class=tokenizer)
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
