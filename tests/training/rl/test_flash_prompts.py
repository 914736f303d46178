"""The row without padding against the row with a mask: the same states, log-probabilities and gradients."""

import pytest
import torch

from convrec.training.rl import flash_prompts, shared_prompts
from convrec.training.rl.flash_prompts import flash_pack, shared_prompt_attention
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.shared_prompts import prompt_index, share_prompts
from tests.training.rl import plain_flash
from tests.training.rl.ragged import ragged_groups, scores_and_gradients, small_model


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(flash_prompts, "_flash", plain_flash.flash)
    monkeypatch.setattr(flash_prompts, "_flash_backward", plain_flash.flash_backward)


def test_a_layout_by_hand():
    ids = torch.tensor([[0, 5, 6, 7, 8], [3, 4, 9, 1, 2], [0, 5, 6, 1, 1]])
    mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0, 1, 1, 1, 1]])
    tokens, positions, layout = flash_pack(ids, mask, 2, prompt_index(ids, mask, 2))
    assert tokens.tolist() == [[5, 3, 4] + [6, 7] + [6, 1] + [9]]
    assert positions.tolist() == [[0, 0, 1] + [1, 2] + [1, 2] + [2]]
    assert layout.own.tolist() == [0, 1, 3, 5, 7, 8] and layout.longest_own == 2
    assert layout.groups.tolist() == [0, 4, 5] and layout.longest_group == 4
    assert layout.prompts.tolist() == [0, 1, 3] and layout.longest_prompt == 2 and layout.start == 3
    states = layout.states(torch.arange(8.0)[None, :, None])
    assert states[..., 0].tolist() == [[3, 4], [7, 0], [5, 6]]


@pytest.mark.parametrize("lengths", [(7, 1, 4), (1, 1, 1)])
@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_log_probabilities_and_gradients_are_those_of_the_masked_row(monkeypatch, kind, lengths, checkpointing):
    """In float64, which the norms of Qwen2 and Llama leave for float32 between."""
    found = []
    for is_flash in (False, True):
        monkeypatch.setattr(shared_prompts, "takes_flash", lambda *_, is_flash=is_flash: is_flash)
        model = small_model(kind).double().train()
        add_log_prob_head(model, 1.2, 1.0, None)
        assert share_prompts(model) is None
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        found.append(scores_and_gradients(model, *ragged_groups((3, 1, 4), lengths)))
    for masked, ragged in zip(*found, strict=True):
        torch.testing.assert_close(ragged, masked, rtol=1e-6, atol=1e-6 * float(masked.abs().max()))


def test_the_compiler_gets_the_shapes_and_the_gradient_of_the_attention():
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(8, heads, 4, generator=draw, dtype=torch.float32) for heads in (4, 2, 2))
    for tensor in (query, key, value):
        tensor.requires_grad_()
    own, groups, prompts = (torch.tensor(b, dtype=torch.int32) for b in ([0, 1, 3, 5, 7, 8], [0, 4, 5], [0, 1, 3]))
    arguments = (query, key, value, own, groups, prompts, 2, 4, 2, 3, 0.5)
    torch.library.opcheck(shared_prompt_attention, arguments)
