"""Weights in bfloat16 with float32 masters, against float32 weights."""

import pytest
import torch

from convrec.training.rl.half_weights import MasterAdamW, halve_weights
from tests.training.rl.tiny import same_rows, series, tiny_trainer, varied_rows, weights

RATE = 1e-6


def _pair(steps=0):
    """Return a float32 layer with AdamW, a bfloat16 one with masters, and its optimizer; both have made some steps."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(8, 4)
    half = torch.nn.Linear(8, 4)
    half.load_state_dict(plain.state_dict())
    masters = halve_weights(half)
    optimizers = [torch.optim.AdamW(own.parameters(), lr=RATE, fused=True) for own in (plain, half)]
    optimizers[1] = MasterAdamW(optimizers[1], masters)
    for seed in range(steps):
        inputs = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)).bfloat16()
        for own, optimizer in zip((plain, half), optimizers, strict=True):
            for scale in (1.0, 2.0**-10):  # summed in float32
                (own(inputs.to(own.weight.dtype)) * scale).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return plain, half, optimizers


def test_updates_below_the_precision_of_a_weight_add_up():
    plain, half, (_, optimizer) = _pair(steps=50)
    first = _pair()[0]
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    for own, master, weight, start in zip(
        plain.parameters(), masters, half.parameters(), first.parameters(), strict=True
    ):
        moved = (master - start).abs()
        assert moved.min() > 0 and moved.max() < 1.1 * 50 * RATE
        torch.testing.assert_close(master, own, rtol=1e-7, atol=1e-9)
        assert weight.dtype == torch.bfloat16 and torch.equal(weight, master.bfloat16())


def test_training_in_bfloat16_is_near_that_in_float32(tiny_model, tmp_path):
    found = []
    for bf16 in (False, True):
        trainer = tiny_trainer(tiny_model, tmp_path / str(bf16), 2, rows=varied_rows(), bf16=bf16, learning_rate=1e-3)
        assert isinstance(trainer.create_optimizer(), MasterAdamW) == bf16
        trainer.train()
        found.append([*series(trainer, "grad_norm"), *series(trainer, "kl"), *series(trainer, "entropy")])
        assert {weight.dtype for weight in trainer.model.parameters()} == {torch.bfloat16 if bf16 else torch.float32}
    assert found[1] == pytest.approx(found[0], rel=0.1, abs=0.005)  # one machine differs by .07 in a norm


def test_an_interrupted_training_in_bfloat16_resumes_exactly(tiny_model, tmp_path):
    options = {"rows": same_rows(), "bf16": True, "save_strategy": "steps", "save_steps": 2}
    whole = tiny_trainer(tiny_model, tmp_path / "whole", 4, **options)
    whole.train()
    again = tiny_trainer(tiny_model, tmp_path / "again", 4, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    masters = [[m for g in t.optimizer.param_groups for m in g["params"]] for t in (whole, again)]
    for one, two in (masters, map(weights, (whole, again))):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_what_is_no_weight_keeps_its_precision(tiny_model, tmp_path):
    """Rounded rotary frequencies would turn distant tokens by a radian."""
    trainer = tiny_trainer(tiny_model, tmp_path, rows=same_rows(), bf16=True, beta=0.1)
    for policy in (trainer.model, trainer.ref_model):
        buffers = dict(policy.named_buffers())
        assert any("inv_freq" in name for name in buffers)
        assert {own.dtype for own in buffers.values() if own.is_floating_point()} == {torch.float32}
        assert {own.dtype for own in policy.parameters()} == {torch.bfloat16}
