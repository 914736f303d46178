"""Training on lists of the catalog alone."""

import math
from itertools import permutations

import pytest
import torch
from datasets import Dataset

from convrec.data.catalog import Catalog
from convrec.generation.export import export_model, lora_config
from convrec.generation.line_tokens import item_token
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.generation.prompt_tokens import token_ids
from convrec.generation.trie import catalog_trie
from convrec.project.errors import InputError
from convrec.training.embedded import END
from convrec.training.rl import logprobs
from convrec.training.rl.constrained import RolloutConstraint
from convrec.training.rl.preferences import PreferenceTrainer
from convrec.training.rl.rewards import RankReward
from convrec.training.rl.trainer import RankGRPOTrainer
from tests.generation.small import save
from tests.generation.vocabularies import by_item
from tests.training.rl.tiny import (
    ASKED,
    CATALOG,
    LINES,
    NUM_RANKS,
    make_constraint,
    score_again,
    series,
    tiny_trainer,
    varied_rows,
)


def _guided_rows():
    """Return `varied_rows` with evidence for one item and against another."""
    rows = varied_rows().to_list()
    for number, row in enumerate(rows):
        row |= {"guided_items": [number % 3, number % 3 + 1], "log_weights": [2.0, -1.0]}
    return Dataset.from_list(rows)


@pytest.mark.parametrize("rows", [varied_rows, _guided_rows])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5, "num_iterations": 2, "temperature": 0.7}])
def test_constrained_rollouts_leave_the_catalog_never_and_are_scored_as_sampled(make, tiny_model, rows, options):
    trainer = make(steps=2, rows=rows(), constraint=make_constraint(tiny_model), beta=0.1, **options)
    trainer.train()
    assert series(trainer, "ratio/mean")[0] == pytest.approx(1, abs=1e-4) and series(trainer, "kl")[0] < 1e-6
    for name, value in (("in_catalog", 1), ("items", NUM_RANKS), ("duplicates", 0), ("seen", 0), ("early_stop", 0)):
        assert set(series(trainer, f"lists/{name}")) == {value}, name
    assert all(0 < value < torch.tensor(4.0 * 3).log() for value in series(trainer, "entropy"))


@pytest.mark.parametrize("algorithm", ["rank_grpo", "rank_grpo_public"])
@pytest.mark.parametrize("is_constrained", [True, False])
def test_lists_of_item_tokens_have_a_token_a_rank(item_model, tmp_path, algorithm, is_constrained):
    constraint = make_constraint(item_model) if is_constrained else None
    options = {"rows": varied_rows(), "constraint": constraint, "algorithm": algorithm}
    trainer = tiny_trainer(item_model, tmp_path / "out", 2, **options)
    asked = [{"role": "user", "content": "PopUp (2009)\nI liked Up (2009)\n"}]
    (prompt,), *_ = trainer._tokenize_prompts([asked])
    assert [prompt] == token_ids(trainer._tokenizer, [asked])
    assert prompt.count(item_token("Up (2009)", trainer._tokenizer)) == 1
    rollouts = trainer._generate_and_score_completions([trainer.train_dataset[0]] * 8)
    if is_constrained:
        assert rollouts["ranks"].tolist() == [[0, 1, 1]] * 8 and rollouts["eos"].tolist() == [[False, False, True]] * 8
        _check_one_pass(trainer, rollouts)
    trainer.train()
    if is_constrained:
        for name, value in (("in_catalog", 1), ("items", NUM_RANKS), ("early_stop", 0), ("overflow", 0)):
            assert set(series(trainer, f"lists/{name}")) == {value}, name


def _check_one_pass(trainer, rollouts) -> None:
    """Lists are drawn without replacement from the distribution behind the prompt: a plain loop over their ranks."""
    parts = ("prompt", "completion")
    ids, mask = (torch.cat([rollouts[f"{part}_{name}"] for part in parts], 1) for name in ("ids", "mask"))
    width = rollouts["completion_ids"].shape[1]
    score = trainer._get_per_token_logps_and_entropies
    found, entropies, _ = score(trainer.model, ids, mask, width, compute_entropy=True)
    (prompt, *_), (is_token, *_) = rollouts["prompt_ids"], rollouts["prompt_mask"]
    prompt = prompt[is_token == 1]
    scores = trainer.model(prompt[None]).logits[0, -1]
    banned = trainer._constraint.request(prompt.tolist()).banned
    tokens = [item_token(str(item), trainer._tokenizer) for item in trainer._constraint.catalog.items]
    for row, own, spread in zip(rollouts["completion_ids"].tolist(), found, entropies, strict=True):
        left = [token for item, token in enumerate(tokens) if item not in banned]
        for rank, token in enumerate(row[:NUM_RANKS]):
            logs = dict(zip(left, scores[left].log_softmax(0), strict=True))
            torch.testing.assert_close(own[rank], logs[token], rtol=1e-4, atol=1e-5)
            entropy = -sum(log.exp() * log for log in logs.values())
            torch.testing.assert_close(spread[rank], entropy, rtol=1e-4, atol=1e-5)
            left.remove(token)


@pytest.mark.parametrize("kind", [RankGRPOTrainer, PreferenceTrainer])
@pytest.mark.parametrize("tied", [True, False, None])
def test_adapters_beside_rows_of_item_tokens(item_model, tmp_path, kind, tied):
    """`tied`: whether the embeddings are; None for no adapters. The merged model is that with the adapters."""
    constraint, trl, base = make_constraint(item_model), {}, item_model
    if tied is not None:
        model, base = load_model(item_model), tmp_path / "base"
        if not tied:
            model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            model.config.tie_word_embeddings = False
        save(base, model, load_tokenizer(item_model))
        trl = {"peft_config": lora_config(model.config, load_tokenizer(base), 2, 4, 0.0)}
    options = {"rows": varied_rows(), "constraint": constraint, "kind": kind, "beta": 0.1, "trl": trl}
    options |= {"algorithm": "grpo"} if kind is PreferenceTrainer else {}
    trainer = tiny_trainer(base, tmp_path / "out", 2, num_iterations=2, **options)
    trainer.train()
    assert set(series(trainer, "lists/in_catalog")) == {1}
    if kind is RankGRPOTrainer:
        assert series(trainer, "ratio/mean")[0] == pytest.approx(1, abs=1e-4) and series(trainer, "kl")[0] < 1e-6
    if tied is not None:
        trainer.save_model(str(tmp_path / "final"))
        export_model(tmp_path / "final", base, load_tokenizer(base), tmp_path / "written", 1.0)
        ids = torch.tensor([load_tokenizer(base)(f"{ASKED}{END}").input_ids])
        found, trained = load_model(tmp_path / "written").eval(), trainer.model.eval()
        torch.testing.assert_close(found(ids).logits, trained(ids).logits, rtol=1e-4, atol=1e-4)
        rows = [own.get_output_embeddings().weight[-len(CATALOG) :] for own in (found, load_model(base))]
        assert (rows[0] != rows[1]).any(1).all()


@pytest.mark.parametrize("rows", [varied_rows, _guided_rows])
def test_the_policy_of_constrained_rollouts_is_model_times_evidence(make, tiny_model, rows):
    trainer = make(rows=rows(), constraint=make_constraint(tiny_model), beta=0.0)
    chosen = [trainer.train_dataset[i] for i in (0, 4) for _ in range(4)]  # none seen, and Up seen
    batch = trainer._generate_and_score_completions(chosen)
    ids, scored, logits = score_again(trainer, batch)
    tokenizer = load_tokenizer(tiny_model)
    for row, example in enumerate(chosen):
        weights = dict(zip(example.get("guided_items", ()), example.get("log_weights", ()), strict=True))
        open_lines = [line for line in LINES if line[:-7] not in example["seen_titles"]]
        lists = {pair: tokenizer("\n".join(pair) + END).input_ids for pair in permutations(open_lines, 2)}
        written = batch["completion_ids"][row][batch["completion_mask"][row].bool()].tolist()
        pair = next(pair for pair, tokens in lists.items() if tokens == written)
        for t, token in enumerate(written):
            begun = {other: tokens for other, tokens in lists.items() if tokens[:t] == written[:t]}
            rank = int(pair[0] in tokenizer.decode(written[:t]))
            logs = {}
            for going_on in {tokens[t] for tokens in begun.values()}:
                below = {other[rank] for other, tokens in begun.items() if tokens[t] == going_on}
                own = [math.exp(weights.get(LINES.index(line), 0.0)) for line in below]
                logs[going_on] = float(logits[row, t, going_on]) + math.log(sum(own) / len(own))
            expected = logs[token] - float(torch.tensor(list(logs.values())).logsumexp(0))
            assert float(scored[row, t]) == pytest.approx(expected, abs=1e-4)


def test_equal_prompts_of_two_people_share_the_least_weights(tiny_model):
    constraint = make_constraint(tiny_model)
    rows = [
        {"seen_titles": [CATALOG.items[0].title], "guided_items": [0, 2, 3], "log_weights": [1.0, 2.0, 3.0]},
        {"seen_titles": [], "guided_items": [1, 2, 3], "log_weights": [4.0, 2.5, 0.5]},
    ]
    constraint.begin([[7], [7], [8]], [*rows, rows[1]])
    shared, alone = constraint.request([7]), constraint.request([8])
    assert by_item(shared.log_weights) == {2: 2.0, 3: 0.5} and shared.banned == {0}
    assert by_item(alone.log_weights) == {1: 4.0, 2: 2.5, 3: 0.5} and alone.banned == set()


def test_rollouts_keep_the_wishes_of_the_conversation(tiny_model):
    constraint = make_constraint(tiny_model)
    said = [{"role": "user", "content": "made after 2010"}]
    constraint.begin([[7], [8]], [{"seen_titles": [], "conversation": said}, {"seen_titles": ["Up"]}])
    assert [set(constraint.trie.closed(constraint.request(prompt))) for prompt in ([7], [8])] == [{0, 1}, {1}]


def test_a_constraint_that_cannot_be_kept_is_refused(make, tiny_model):
    for options, found in (
        ({"rewards": RankReward(CATALOG, 3)}, "3"),
        ({"constraint": make_constraint(tiny_model, 3)}, "2, 3"),
    ):
        with pytest.raises(ValueError, match=f"num_ranks = 2, but .* have .{found}. ranks"):
            make(**options)
    with pytest.raises(InputError, match="max_completion_length = 3: 2 items of the catalog can take"):
        make(constraint=make_constraint(tiny_model), max_completion_length=3)
    with pytest.raises(ValueError, match="rollout_func is not supported here"):
        make(constraint=make_constraint(tiny_model), trl={"rollout_func": lambda prompts, trainer: {}})
    short = CATALOG.items[:2]
    trie = catalog_trie(Catalog(short), load_tokenizer(tiny_model))
    trainer = make(rows=varied_rows(), constraint=RolloutConstraint(Catalog(short), trie, NUM_RANKS))
    with pytest.raises(InputError, match="list of 2 items is asked for, and 1 of the catalog's 2"):
        trainer.train()


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_the_logits_of_the_catalog_s_tokens_are_enough(make, tiny_model, monkeypatch, penalty):
    """Log-probabilities, entropies and gradients are those of the whole vocabulary."""
    found = []
    for has_rows in (logprobs._has_rows, lambda _: False):
        monkeypatch.setattr(logprobs, "_has_rows", has_rows)
        torch.manual_seed(0)
        trainer = make(rows=varied_rows(), constraint=make_constraint(tiny_model), repetition_penalty=penalty)
        trainer.current_gradient_accumulation_steps = 1
        chosen = [trainer.train_dataset[i] for i in (0, 4) for _ in range(8)]
        batch = trainer._generate_and_score_completions(chosen)
        ids, mask = (torch.cat([batch[f"prompt_{n}"], batch[f"completion_{n}"]], 1) for n in ("ids", "mask"))
        scored = trainer.model(input_ids=ids, attention_mask=mask, completion_width=batch["completion_ids"].shape[1])
        scored.log_probs.square().sum().backward()
        assert 2 * len(trainer._constraint.trie.alphabet) <= trainer.model.config.vocab_size
        found.append([scored.log_probs, scored.entropy, *(own.grad for own in trainer.model.parameters())])
    for cut, whole in zip(*found, strict=True):
        # Sums in another order differ by the rounding of the largest gradients, which depends on the machine.
        torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6 * max(1.0, float(whole.abs().max())))
