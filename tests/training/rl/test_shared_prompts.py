"""The forward pass that reads each prompt once against the plain one, which reads it with every completion."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from convrec.training.rl import shared_prompts
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.shared_prompts import completion_states, pack, prompt_index, share_prompts
from tests.training.rl.ragged import WIDTH, ragged_groups, scores_and_gradients, small_model

SIZES, LENGTHS = (3, 1, 4), (7, 1, 4)


def _reversed(*arguments):
    ids, positions, layout = pack(*arguments)
    return ids.flip(1), positions, layout


def _broken(*_):
    raise ValueError("no such thing")


def test_a_layout_by_hand():
    ids = torch.tensor([[0, 5, 6, 7, 8], [3, 4, 9, 1, 2], [0, 5, 6, 1, 1]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    numbers = prompt_index(ids, mask, 2)
    tokens, positions, layout = pack(ids, mask, 2, numbers)
    assert numbers == layout.prompt_of.tolist() == [0, 1, 0]
    assert tokens.tolist() == [[5, 0, 3, 4] + [6, 7] + [9, 1] + [6, 1]]
    assert positions.tolist() == [[0, 1, 0, 1] + [1, 2] + [2, 3] + [1, 2]]
    assert layout.allowed[:, 0].int().tolist() == [
        [[1, 0, 1, 0], [1, 0, 1, 1]],
        [[1, 1, 1, 0], [1, 1, 1, 1]],
        [[1, 0, 1, 0], [1, 0, 1, 1]],
    ]


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "phi3", "smollm3", "olmo2", "granite", "gpt2", "mixtral"])
def test_hidden_states_are_those_of_the_plain_pass(kind):
    model = small_model(kind, **({"num_local_experts": 2} if kind == "mixtral" else {})).eval()
    ids, mask = ragged_groups(SIZES, LENGTHS)
    with torch.no_grad():
        plain = completion_states(model, ids, mask, WIDTH)
        assert share_prompts(model) is None and share_prompts(model) is None
        shared = completion_states(model, ids, mask, WIDTH)
    real = mask[:, -WIDTH:].bool()
    torch.testing.assert_close(shared[real], plain[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("checkpointing", "adapted", "penalty", "lengths"),
    [(False, False, 1.0, (7, 1, 4)), (True, False, 1.3, (1, 1, 1)), (True, True, 1.3, (7, 1, 4))],
)
@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_log_probabilities_and_gradients_are_those_of_the_plain_pass(kind, checkpointing, adapted, penalty, lengths):
    """In float64, which Qwen2's norms leave for float32 between."""
    ids, mask = ragged_groups(SIZES, lengths)
    results = []
    for shares in (False, True):
        model = small_model(kind).double().train()
        add_log_prob_head(model, penalty, 0.9, None)
        if shares:
            assert share_prompts(model) is None
        policy = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear")) if adapted else model
        if adapted:
            torch.manual_seed(1)
            for name, weight in policy.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(weight, std=0.1)
        if checkpointing:
            policy.gradient_checkpointing_enable({"use_reentrant": False})
            policy.enable_input_require_grads()
        results.append(scores_and_gradients(policy, ids, mask))
    assert len(results[0]) > 2 and all(value.abs().max() > 0 for value in results[0])
    for shared, plain in zip(*results, strict=True):
        assert (shared - plain).abs().max() <= (1e-12 if kind == "gpt2" else 1e-6) * plain.abs().max()


@pytest.mark.parametrize(
    ("kind", "options", "hindrance"),
    [
        ("qwen2", {"attn_implementation": "eager"}, "attn_implementation is 'eager'"),
        ("gemma2", {"head_dim": 8}, "some layers are sliding_attention"),
        ("mistral", {"sliding_window": 4}, "some layers are sliding_attention"),
        ("stablelm", {}, "StableLmForCausalLM does not accept another attention function"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "attn_implementation is 'eager'"),
    ],
)
def test_a_model_that_cannot_share_says_why_and_is_read_plainly(kind, options, hindrance):
    model = small_model(kind, **options).eval()
    ids, mask = ragged_groups(SIZES, LENGTHS)
    with torch.no_grad():
        before = completion_states(model, ids, mask, WIDTH)
        assert hindrance in share_prompts(model)
        torch.testing.assert_close(completion_states(model, ids, mask, WIDTH), before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("wrong", "hindrance"), [(_reversed, "gives other results with shared prompts"), (_broken, "(no such thing)")]
)
def test_a_model_that_answers_otherwise_is_read_plainly(wrong, hindrance, monkeypatch):
    model = small_model().eval()
    monkeypatch.setattr(shared_prompts, "pack", wrong)
    assert hindrance in share_prompts(model)
    assert model.config._attn_implementation == "sdpa"


def test_generation_and_saved_configurations_stay_as_they_were(tmp_path):
    plain = small_model().eval()
    shared = copy.deepcopy(plain)
    assert share_prompts(shared) is None
    ids, mask = ragged_groups(SIZES, LENGTHS)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    lists = [model.generate(input_ids=ids, attention_mask=mask, **options) for model in (plain, shared)]
    assert torch.equal(*lists)
    torch.testing.assert_close(plain(ids, attention_mask=mask).logits, shared(ids, attention_mask=mask).logits)
    assert shared.config.to_json_string() == plain.config.to_json_string()
    shared.save_pretrained(tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_each_prompt_is_read_once():
    model = small_model().eval()
    seen = []
    model.model.embed_tokens.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numel()))
    ids, mask = ragged_groups((8, 8), (20, 20))
    completion_states(model, ids, mask, WIDTH)
    assert share_prompts(model) is None
    completion_states(model, ids, mask, WIDTH)
    assert (seen[0], seen[-1]) == (16 * (20 + WIDTH), 2 * 19 + 16 * WIDTH)
