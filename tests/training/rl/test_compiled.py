"""Compiled layers against the same layers as they are."""

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from convrec.training.rl import flash_prompts, shared_prompts
from convrec.training.rl.compiled import Compiler, compile_layers
from convrec.training.rl.logprobs import add_log_prob_head
from convrec.training.rl.shared_prompts import share_prompts
from tests.training.rl import plain_flash
from tests.training.rl.ragged import ragged_groups, scores_and_gradients, small_model


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "checkpointing"), [("qwen2", False), ("llama", True)])
def test_log_probabilities_and_gradients_are_those_of_the_layers_as_they_are(monkeypatch, kind, checkpointing):
    """For two layouts of tokens, of which the second is not compiled again."""
    monkeypatch.setattr(flash_prompts, "_flash", plain_flash.flash)
    monkeypatch.setattr(flash_prompts, "_flash_backward", plain_flash.flash_backward)
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
    for eager, own in zip(*found, strict=True):
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
