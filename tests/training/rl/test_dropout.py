import copy
import logging

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, GPT2Config, OPTConfig, PhimoeConfig, Qwen2Config

from convrec.generation.pretrained import load_tokenizer
from convrec.training.rl.dropout import disable_dropout
from tests.generation.small import save
from tests.training.rl.tiny import series, tiny_trainer

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
FEED = {"intermediate_size": 16, "num_key_value_heads": 2}
CONFIGS = {
    "qwen2": (Qwen2Config(**SIZES, **FEED, attention_dropout=0.5), {"attention_dropout": 0.5}),
    "opt": (
        OPTConfig(**SIZES, ffn_dim=16, word_embed_proj_dim=16, dropout=0.4, attention_dropout=0.3, layerdrop=0.5),
        {"dropout": 0.4, "attention_dropout": 0.3, "layerdrop": 0.5},
    ),
    "gpt2": (
        GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, attn_pdrop=0.5),
        {"attn_pdrop": 0.5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "summary_first_dropout": 0.1, "dropout": 0.5},
    ),
    "phimoe": (
        PhimoeConfig(**SIZES, **FEED, num_local_experts=2, router_jitter_noise=0.5, input_jitter_noise=0.1),
        {"router_jitter_noise": 0.5, "input_jitter_noise": 0.1},
    ),
}


def _is_deterministic(model: torch.nn.Module) -> bool:
    ids = torch.arange(16).view(2, 8)
    with torch.no_grad():
        return torch.equal(model.eval()(ids).logits, model.train()(ids).logits)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_in_training_equals_the_one_in_evaluation(name, attention):
    config, rates = copy.deepcopy(CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    assert not _is_deterministic(model)
    assert disable_dropout(model) == rates
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
