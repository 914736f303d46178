"""Batches without padding train what batches with padding do."""

import pytest
import torch
from datasets import Dataset

from convrec.training import sft
from convrec.training.padding_free import drop_padding
from tests.training.collated import batch_loss, labelled_rows
from tests.training.rl.ragged import small_model
from tests.training.tiny_sft import make_tiny, train_history


@pytest.mark.parametrize(("kind", "heads"), [("qwen2", 2), ("llama", 4)], ids=["grouped queries", "plain"])
@pytest.mark.parametrize(("lengths", "checkpointing"), [([7, 3, 12, 5], False), ([9], False), ([2, 30, 2], True)])
def test_loss_and_gradients_are_those_of_padded_batches(kind, heads, lengths, checkpointing):
    model = small_model(kind, num_key_value_heads=heads, initializer_range=0.3).double().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    rows = labelled_rows(lengths)
    found = []
    for padding_free in (False, True):
        assert not padding_free or drop_padding(model) is None
        model.zero_grad()
        loss = batch_loss(model, rows, padding_free=padding_free)
        loss.backward()
        found.append([loss.detach(), *(weight.grad.clone() for weight in model.parameters())])
    padded, packed = found
    torch.testing.assert_close(packed, padded, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [("mistral", {}), ("qwen2", {"use_sliding_window": True, "max_window_layers": 1})],
    ids=["all layers", "some layers"],
)
def test_a_model_with_a_sliding_window_keeps_its_padding(kind, options):
    model = small_model(kind, sliding_window=3, **options)
    assert "sliding_attention" in drop_padding(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_model_with_another_attention_keeps_its_padding():
    model = small_model(attn_implementation="eager")
    assert "'eager'" in drop_padding(model)
    assert model.config._attn_implementation == "eager"


def test_a_padded_batch_is_refused_by_a_model_without_padding():
    model = make_tiny()
    assert drop_padding(model) is None
    with pytest.raises(ValueError, match="accepts only padding-free batches"):
        model(input_ids=torch.ones(2, 3, dtype=torch.long))


RAGGED = Dataset.from_list(
    [{"prompt": "a" + " film" * (1 + i % 5), "completion": " please" * (1 + i % 3)} for i in range(24)]
)


def _history(folder, monkeypatch, padded: bool) -> list[dict[str, float]]:
    if padded:
        monkeypatch.setattr(sft, "drop_padding", lambda model: "asked for")
    options = {"learning_rate": 1e-2, "gradient_accumulation_steps": 2, "save_steps": 100}
    return train_history(make_tiny(), folder, rows=RAGGED, **options)


def test_sft_has_the_losses_and_gradients_of_padded_batches(tmp_path, monkeypatch):
    packed = _history(tmp_path / "packed", monkeypatch, padded=False)
    padded = _history(tmp_path / "padded", monkeypatch, padded=True)
    assert len(packed) == len(padded) > 6
    for name in ("loss", "grad_norm", "entropy", "mean_token_accuracy", "num_tokens"):
        values = [[row[name] for row in rows if name in row] for rows in (packed, padded)]
        assert values[0] == pytest.approx(values[1], rel=1e-4)
