import logging

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from convrec.generation.pretrained import load_tokenizer
from convrec.training.rl.dropout import disable_dropout
from tests.generation.small import save
from tests.training.rl.ragged import small_model
from tests.training.rl.tiny import series, tiny_trainer

RATES = {
    "qwen2": {"attention_dropout": 0.5},
    "opt": {"dropout": 0.4, "attention_dropout": 0.3, "layerdrop": 0.5},
    "gpt2": {"attn_pdrop": 0.5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "summary_first_dropout": 0.1},
    "phimoe": {"router_jitter_noise": 0.5, "input_jitter_noise": 0.1},
}


def _is_deterministic(model: torch.nn.Module) -> bool:
    ids = torch.arange(16).view(2, 8)
    with torch.no_grad():
        return torch.equal(model.eval()(ids).logits, model.train()(ids).logits)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", RATES)
def test_a_model_in_training_equals_the_one_in_evaluation(kind, attention):
    model = small_model(kind, **RATES[kind], attn_implementation=attention, num_local_experts=2)
    assert not _is_deterministic(model)
    of_modules = {"dropout": 0.5} if kind == "gpt2" else {}
    assert disable_dropout(model) == RATES[kind] | of_modules
    assert _is_deterministic(model) and disable_dropout(model) == {}


@pytest.fixture
def model_with_dropout(tiny_model, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attention_dropout=0.4)
    return save(tmp_path / "model", model, load_tokenizer(tiny_model))


@pytest.mark.parametrize("adapter", [None, LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.3)])
def test_the_ratio_is_one_on_policy_whatever_the_dropout(model_with_dropout, adapter, tmp_path, caplog):
    options = {"num_iterations": 2, "beta": 0.1, "save_strategy": "steps", "save_steps": 2}
    with caplog.at_level(logging.INFO, logger="convrec"):
        trainer = tiny_trainer(model_with_dropout, tmp_path / "out", 2, trl={"peft_config": adapter}, **options)
    assert "dropout is disabled in reinforcement learning: attention_dropout = 0.4" in caplog.text
    trainer.train()
    for name in ("ratio/q05", "ratio/q50", "ratio/q95"):
        assert series(trainer, name)[0] == 1
    assert series(trainer, "kl")[0] < 1e-9
    resumed = tiny_trainer(model_with_dropout, tmp_path / "out", 4, trl={"peft_config": adapter}, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert series(resumed, "ratio/q05")[-2] == series(resumed, "ratio/q95")[-2] == 1
    assert disable_dropout(resumed.model) == {}
