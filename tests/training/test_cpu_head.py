"""The head of a CPU gives what TRL's gives, at the trained positions."""

import pytest
import torch
from transformers import Qwen2ForCausalLM
from trl.trainer import utils as trl_utils

from convrec.training import cpu_head
from tests.training.tiny_sft import make_tiny, train_tiny

THEIRS = trl_utils._use_triton, cpu_head._TILES
NAMES = ("log_probs", "entropy", "is_top1", "label_mask")


@pytest.fixture
def scored(monkeypatch) -> list[int]:
    """How many positions each call of the head scores; what `use_cpu_head` changes is undone."""
    calls: list[int] = []
    real = cpu_head.WholeLogits.apply

    def spy(hidden, weight, bias, targets, *arguments):
        calls.append(len(targets))
        return real(hidden, weight, bias, targets, *arguments)

    monkeypatch.setattr(cpu_head.WholeLogits, "apply", staticmethod(spy))
    monkeypatch.setattr(trl_utils, "_use_triton", THEIRS[0])
    monkeypatch.setattr(trl_utils, "_ChunkedLogProbFunction", THEIRS[1])
    return calls


def _outputs(model: Qwen2ForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    output = model(input_ids=ids, labels=labels, fused_lm_head=True)
    output.log_probs.sum().backward()
    return [getattr(output, name).detach() for name in NAMES] + [weight.grad.clone() for weight in model.parameters()]


@pytest.mark.parametrize("max_logits", [cpu_head.MAX_LOGITS, 1000], ids=["whole", "tile by tile"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_outputs_and_gradients_are_trl_s(scored, monkeypatch, max_logits, temperature):
    monkeypatch.setattr(cpu_head, "MAX_LOGITS", max_logits)
    model = make_tiny()
    trl_utils.add_fused_lm_head(model, temperature, outputs=NAMES[:3])
    ids = torch.randint(5, 260, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :4] = labels[2, 6:] = -100
    theirs = _outputs(model, ids, labels)
    cpu_head.use_cpu_head()
    ours = _outputs(model, ids, labels)
    assert scored == [5 + 5 + 2]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attribute", [None, "ds_id"], ids=["whole", "spread by ZeRO-3"])
def test_a_weight_that_zero_3_spreads_is_left_to_trl(scored, attribute):
    weight = torch.randn(20, 4, requires_grad=True)
    if attribute:
        setattr(weight, attribute, 0)
    log_probs, *_ = cpu_head.WholeLogits.apply(torch.randn(3, 4), weight, None, torch.arange(3), 1.0, 8, None, 1.0, ())
    assert ("ChunkedLogProb" in type(log_probs.grad_fn).__name__) == (attribute is not None)


def test_a_batch_without_labels_has_a_loss_of_zero(scored):
    cpu_head.use_cpu_head()
    model = make_tiny()
    trl_utils.add_fused_lm_head(model, outputs=NAMES[:3])
    ids = torch.ones(2, 3, dtype=torch.long)
    *_, embedding = _outputs(model, ids, torch.full_like(ids, -100))
    assert scored == [0] and not embedding.any()


def test_sft_on_a_cpu_uses_it(scored, tmp_path):
    train_tiny(make_tiny(), tmp_path, stop=1)
    assert len(scored) == 1
