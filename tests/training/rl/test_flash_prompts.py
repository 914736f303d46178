"""The row without padding against the row with a mask, and compiled layers against the same layers as they are.

FlashAttention's two functions over ragged sequences are plain loops here.
"""

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from convrec.training.rl import flash_prompts, shared_prompts
from convrec.training.rl.compiled import Compiler, compile_layers
from convrec.training.rl.flash_prompts import flash_pack, shared_prompt_attention
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.shared_prompts import prompt_index, share_prompts
from tests.training.rl.ragged import ragged_groups, scores_and_gradients, small_model


def _sequences(query, key, bounds, causal, scale):
    """Yield the slices of each sequence's queries and keys, and its scaled scores (heads, queries, keys)."""
    repeats = query.shape[1] // key.shape[1]
    for (first, last), (start, end) in zip(*(list(zip(b[:-1], b[1:], strict=True)) for b in bounds), strict=True):
        queries, keys = slice(first, last), slice(start, end)
        scores = torch.einsum("qhd,khd->hqk", query[queries], key[keys].repeat_interleave(repeats, 1)) * scale
        if causal:
            scores = scores.masked_fill(~torch.ones_like(scores[0]).tril().bool(), -torch.inf)
        yield queries, keys, scores


def _flash(query, key, value, bounds, longest, causal, scale):
    """Like `flash_prompts._flash`."""
    assert longest == tuple(int(own.diff().max()) for own in bounds)
    output, log_sum = torch.full_like(query, torch.nan), query.new_full((query.shape[1], len(query)), torch.nan)
    for queries, keys, scores in _sequences(query, key, bounds, causal, scale):
        values = value[keys].repeat_interleave(query.shape[1] // key.shape[1], 1)
        output[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
        log_sum[:, queries] = scores.logsumexp(-1) if scores.shape[-1] else torch.inf  # as FlashAttention does
    return output, log_sum


def _flash_backward(gradient, query, key, value, output, log_sum, bounds, longest, causal, scale):
    """Like `flash_prompts._flash_backward`: the probabilities are those that the log-sum-exp gives."""
    repeats = query.shape[1] // key.shape[1]
    found = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    of_row = (gradient * output).sum(-1).T  # (heads, N)
    for queries, keys, scores in _sequences(query, key, bounds, causal, scale):
        probabilities = (scores - log_sum[:, queries, None]).exp()
        values, own = value[keys].repeat_interleave(repeats, 1), gradient[queries]
        of_scores = probabilities * (torch.einsum("qhd,khd->hqk", own, values) - of_row[:, queries, None]) * scale
        found[0][queries] = torch.einsum("hqk,khd->qhd", of_scores, key[keys].repeat_interleave(repeats, 1))
        of_keys = torch.einsum("hqk,qhd->khd", of_scores, query[queries])
        of_values = torch.einsum("hqk,qhd->khd", probabilities, own)
        found[1][keys] = of_keys.unflatten(1, (-1, repeats)).sum(2)
        found[2][keys] = of_values.unflatten(1, (-1, repeats)).sum(2)
    return found


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr(flash_prompts, "_flash", _flash)
    monkeypatch.setattr(flash_prompts, "_flash_backward", _flash_backward)


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


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "checkpointing"), [("qwen2", False), ("llama", True)])
def test_compiled_layers_have_the_log_probabilities_and_gradients_of_plain_layers(monkeypatch, kind, checkpointing):
    """For two layouts of tokens, of which the second is not compiled again."""
    monkeypatch.setattr(shared_prompts, "takes_flash", lambda *_: True)
    found = []
    for compiled in (False, True):
        model = small_model(kind).train()
        add_log_prob_head(model, 1.2, 1.0, None, compiled=compiled)
        assert share_prompts(model) is None
        if compiled:
            compile_layers(model)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        first = scores_and_gradients(model, *ragged_groups((3, 1, 4), (7, 2, 4)))
        with torch._dynamo.config.patch(error_on_recompile=compiled):
            found.append(first + scores_and_gradients(model, *ragged_groups((2, 2), (3, 9))))
    eager, own = found
    torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch, caplog):
    def compiled(function, dynamic):
        def fails(*_):
            raise TorchDynamoException("no compiler here\nand more")

        return fails

    monkeypatch.setattr(torch, "compile", compiled)
    compiler = Compiler()
    one, two = compiler.compile(lambda x: x + 1), compiler.compile(lambda x: x + 2)
    assert one(1) == 2 and two(1) == 3 and one(2) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "the model runs without torch.compile, which fails: no compiler here"
    ]
