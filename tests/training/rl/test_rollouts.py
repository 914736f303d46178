import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, Qwen2ForCausalLM

from convrec.training.rl.rollouts import generate_groups
from tests.training.rl.ragged import small_model

PAD, EOS = 0, 1
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 2], [9], [4, 3]]


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return small_model(vocab_size=12, initializer_range=0.5).eval()


def _config(**options) -> GenerationConfig:
    plain = {"do_sample": True, "max_new_tokens": 12, "pad_token_id": PAD, "eos_token_id": [EOS]}
    return GenerationConfig(**{**plain, **options})


@pytest.mark.parametrize("options", [{}, {"pad_token_id": EOS, "repetition_penalty": 1.8}])
def test_shared_prefill_gives_what_each_row_alone_gives(model, options):
    """With EOS as the pad token, a repetition penalty would find EOS in the padding of short prompts."""
    config = _config(do_sample=False, **options)
    together = generate_groups(model, [prompt for prompt in PROMPTS for _ in range(3)], config)
    alone = [generate_groups(model, [prompt], config)[0] for prompt in PROMPTS]
    assert together == [completion for completion in alone for _ in range(3)]


@pytest.mark.parametrize(
    "setting", [{"min_p": 0.9}, {"suppress_tokens": [2, 3, 4]}, {"no_repeat_ngram_size": 1}, {"min_new_tokens": 10}]
)
@pytest.mark.parametrize("adapted", [False, True])
def test_the_model_s_own_settings_of_generation_stay_out(model, monkeypatch, setting, adapted):
    policy = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, target_modules=["q_proj"])) if adapted else model
    own = GenerationConfig(**setting)
    samples = []
    for settings in (GenerationConfig(), own):
        monkeypatch.setattr(policy.get_base_model() if adapted else policy, "generation_config", settings)
        torch.manual_seed(0)
        samples.append(generate_groups(policy, [PROMPTS[0]] * 8, _config()))
    assert samples[0] == samples[1] and policy.generation_config is own


def test_samples_of_a_group_differ_and_end_at_their_eos(model):
    torch.manual_seed(0)
    completions = generate_groups(model, [PROMPTS[0]] * 16, _config())
    assert len({tuple(completion) for completion in completions}) > 8
    assert all(EOS not in completion[:-1] for completion in completions)
    assert any(completion[-1] == EOS for completion in completions)
