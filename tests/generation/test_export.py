"""The model that a training writes; a training that diverges stops, and no model of it is written."""

import math
from unittest.mock import MagicMock

import pytest
import torch
from transformers import Qwen2ForCausalLM
from transformers.integrations import deepspeed
from trl import SFTTrainer

from convrec.generation.export import export_model, write_model
from convrec.generation.finite import NotFiniteError
from convrec.project.errors import EXIT_BAD_INPUT, InputError
from tests.training.tiny_sft import TOKENIZER, make_tiny, train_tiny


@pytest.fixture
def model() -> Qwen2ForCausalLM:
    return make_tiny()


def test_sft_stops_at_a_loss_that_is_not_finite(model, tmp_path, monkeypatch):
    real = SFTTrainer.compute_loss

    def spoilt(trainer: SFTTrainer, *arguments, **options):
        return real(trainer, *arguments, **options) * (math.inf if trainer.state.global_step == 2 else 1.0)

    monkeypatch.setattr(SFTTrainer, "compute_loss", spoilt)
    with pytest.raises(NotFiniteError, match="the loss is inf after step 2.*Lower learning_rate") as caught:
        train_tiny(model, tmp_path)
    assert caught.value.status == EXIT_BAD_INPUT
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["checkpoint-1", "checkpoint-2"]


def test_sft_stops_at_a_gradient_that_is_not_finite_before_the_update(model, tmp_path):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.model.layers[0].mlp.up_proj.weight.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NotFiniteError, match="gradient's norm is nan after step 0"):
        train_tiny(model, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_model_with_a_weight_that_is_not_finite_is_not_written(model, tmp_path, bad):
    with torch.no_grad():
        model.model.norm.weight[3] = bad
    with pytest.raises(NotFiniteError, match=r"1 tensors .* model.norm.weight first"):
        write_model(model, TOKENIZER, tmp_path / "written")
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(InputError, match="model.norm.weight has inf or NaN"):
        export_model(tmp_path / "saved", tmp_path / "saved", TOKENIZER, tmp_path / "written", 1.0)
    assert not (tmp_path / "written").exists()


def test_a_model_is_loaded_whole_after_a_training_with_zero3(model, tmp_path, monkeypatch):
    """DeepSpeed's configuration outlives the training; with it, all processes would have to load the model together."""
    config = MagicMock(**{"is_zero3.return_value": True})
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: config)
    model.save_pretrained(tmp_path / "saved")
    export_model(tmp_path / "saved", tmp_path / "saved", TOKENIZER, tmp_path / "written", 1.0)
    assert not deepspeed.is_deepspeed_zero3_enabled() and (tmp_path / "written" / "model.safetensors").is_file()
