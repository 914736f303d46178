"""What SFT learns: targets of training lists against a plain loop, and the loss of a batch."""

import copy
import math

import numpy as np
import pytest
import torch
from datasets import Dataset

from convrec.generation.item_tokens import add_item_tokens
from convrec.generation.line_tokens import tokenize_lines
from convrec.training.targets import IGNORED, ListCollator, one_target, write_list
from tests.generation.vocabularies import TOKENIZERS
from tests.service.recommending import CATALOG
from tests.training.tiny_sft import TOKENIZER, make_tiny, train_history

LINES = [str(item) for item in CATALOG.items]
LENGTH = 6


def _lines(kind: str):
    tokenizer = TOKENIZER if kind == "tiny" else TOKENIZERS[kind]()
    return tokenize_lines(LINES, tokenizer, ""), tokenizer


@pytest.mark.parametrize("kind", ["tiny", "byte_level", "spanning"])
@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_targets_are_the_shares_of_the_open_items_below_each_token(kind, weight):
    """A plain loop: at each token, count how each liked item that is not written goes on."""
    lines, tokenizer = _lines(kind)
    rng, end = np.random.default_rng(0), tokenizer.eos_token_id
    for _ in range(20):
        items = rng.permutation(len(LINES)).tolist()
        liked, others = items[: rng.integers(0, 8)], items[8 : 8 + rng.integers(0, 8)]
        found = write_list(liked, others, lines, end, LENGTH, weight)
        tokens, weights, targets = [], [], []
        for rank, item in enumerate((liked + (others if weight else []))[:LENGTH]):
            place = 2 * (rank > 0) + (rank == LENGTH - 1)
            for depth, token in enumerate(lines[item][place]):
                counts: dict[int, int] = {}
                for other in liked[rank:] or [item]:
                    line = lines[other][place]
                    if line[:depth] == lines[item][place][:depth]:
                        counts[line[depth]] = counts.get(line[depth], 0) + 1
                tokens.append(token)
                weights.append(1.0 if rank < len(liked) else weight)
                targets.append({own: number / sum(counts.values()) for own, number in counts.items()})
        is_whole = len(liked) + (len(others) if weight else 0) >= LENGTH
        if is_whole:
            tokens, weights, targets = [*tokens, end], [*weights, weights[-1]], [*targets, {end: 1.0}]
        assert (found.tokens, found.weights) == (tokens, weights)
        assert [dict(zip(*target, strict=True)) for target in found.targets] == targets


def test_the_target_of_one_pass_is_uniform_over_the_liked_items_mixed_with_falling_shares_of_others():
    lines, _ = _lines("item_tokens")
    token = [line.first_at_end[0] for line in lines]
    assert one_target([3, 1], [2], lines, 0.0) == ([token[3]], [1.0], [([token[3], token[1]], [0.5, 0.5])])
    (tokens, shares) = one_target([3, 1], [2, 0], lines, 0.5).targets[0]
    assert tokens == [token[3], token[1], token[2], token[0]]
    second = 1 / math.log2(3)
    assert np.allclose(np.multiply(shares, 1.5), [0.5, 0.5, 0.5 / (1 + second), 0.5 * second / (1 + second)])
    assert one_target([], [2], lines, 0.5) == ([token[2]], [0.5], [([token[2]], [1.0])])


def _collator(tokenizer, **options):
    return ListCollator(
        tokenize_lines(LINES, tokenizer, ""),
        tokenizer.eos_token_id,
        LENGTH,
        **{"others_weight": 0.5, "seed": 3} | options,
    )


def _rows(liked=((0, 4, 9), (2,), (5, 7)), others=((1, 2), (), (3, 8, 10, 11, 12))):
    prompts = [TOKENIZER(text).input_ids for text in ("a film please", "please", "a film a film")]
    rows = {"row": range(3), "prompt": prompts, "liked": map(list, liked), "others": map(list, others)}
    return Dataset.from_dict({name: list(values) for name, values in rows.items()})


def _losses(folder, model, rows=None, **options):
    usual = {"max_length": 400, "learning_rate": 0.0, "num_train_epochs": 1, "lr_scheduler_type": "constant"}
    history = train_history(model, folder, rows=rows or _rows(), **usual | options)
    return [row["loss"] for row in history if "loss" in row]


@pytest.mark.parametrize("is_one_pass", [False, True])
@pytest.mark.parametrize("is_padded", [False, True])
def test_the_loss_is_the_cross_entropy_with_the_targets(tmp_path, monkeypatch, is_one_pass, is_padded):
    """It is a mean over learned tokens, also of several accumulated batches; one row at a time gives the same."""
    model, tokenizer = make_tiny(), copy.deepcopy(TOKENIZER)
    if is_one_pass:
        add_item_tokens(model, tokenizer, CATALOG)
    plain, number = 0.0, 0
    for row in _rows():
        collator = _collator(tokenizer)
        collator.collate = lambda examples: examples[0]
        batch = collator([row])
        with torch.no_grad():
            logits = model(torch.tensor([batch["input_ids"]])).logits[0, :-1].log_softmax(-1)
        learned = [place for place, label in enumerate(batch["labels"][1:]) if label != IGNORED]
        number += len(learned)
        if "target_rows" not in batch:
            plain -= sum(float(logits[place, batch["input_ids"][place + 1]]) for place in learned)
            continue
        targets = (batch[f"target_{name}"].tolist() for name in ("rows", "tokens", "shares"))
        for at, token, share in zip(*targets, strict=True):
            plain -= batch["target_weights"][at].item() * share * float(logits[learned[at], token])
    if is_padded:
        monkeypatch.setattr("convrec.training.sft.drop_padding", lambda _: "as asked")
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "tokenizer": tokenizer}
    (loss,) = _losses(tmp_path / "run", model, lists=_collator(tokenizer), **options)
    assert loss == pytest.approx(plain / number, rel=1e-5)


def test_one_liked_item_gives_the_loss_of_its_tokens(tmp_path):
    rows = _rows(liked=((4,), (2,), (5,)), others=((), (), ()))
    lines = tokenize_lines(LINES, TOKENIZER, "")
    plain = [
        {"input_ids": row["prompt"] + own, "labels": [IGNORED] * len(row["prompt"]) + own}
        for row, own in ((row, [*lines[row["liked"][0]].first_before_newline]) for row in rows)
    ]
    expected = _losses(tmp_path / "plain", make_tiny(), Dataset.from_list(plain))
    assert _losses(tmp_path / "lists", make_tiny(), rows, lists=_collator(TOKENIZER)) == expected


def test_orders_differ_by_epoch_and_row_and_are_those_of_an_interrupted_training(tmp_path):
    options = {"num_train_epochs": 3, "learning_rate": 1e-2, "per_device_train_batch_size": 2}
    whole = _losses(tmp_path / "whole", make_tiny(), lists=_collator(TOKENIZER), **options)
    _losses(tmp_path / "parts", make_tiny(), lists=_collator(TOKENIZER), stop=3, **options)  # in the second epoch
    assert _losses(tmp_path / "parts", make_tiny(), lists=_collator(TOKENIZER), **options) == whole
    collator = _collator(TOKENIZER)
    collator.collate = lambda examples: {"ids": [example["input_ids"] for example in examples]}
    first = collator(list(_rows()))["ids"]
    collator.epoch = 1
    assert collator(list(_rows()))["ids"] != first
