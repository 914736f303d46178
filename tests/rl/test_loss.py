import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.rl.loss import rank_grpo_loss

NUM_RANKS = 3
CLIP = {"num_ranks": NUM_RANKS, "epsilon_low": 0.06, "epsilon_high": 0.08}


def _batch(seed: int, rows: int = 4, length: int = 9) -> dict[str, torch.Tensor]:
    """Random ragged completions: ranks never decrease, some rows stop early, some run past the last rank."""
    generator = torch.Generator().manual_seed(seed)
    rand = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    steps = (rand(rows, length) < 0.4).long()
    ranks = steps.cumsum(1) - steps
    kept = (rand(rows) * (length + 1)).long()
    mask = (torch.arange(length)[None] < kept[:, None]).long()
    return {
        "logps": -rand(rows, length),
        "old_logps": -rand(rows, length),
        "advantages": 2 * rand(rows, NUM_RANKS) - 1,
        "ranks": ranks.masked_fill(mask == 0, -1),
        "mask": mask,
    }


def _surrogate(log_weight: float, advantage: float, low: float = 0.06, high: float = 0.08) -> float:
    weight = math.exp(log_weight)
    return min(weight * advantage, min(max(weight, 1 - low), 1 + high) * advantage)


def _loop(batch: dict[str, torch.Tensor], beta: float = 0.0, reference: torch.Tensor | None = None) -> float:
    """The paper's J, negated, written as its sums, with the KL penalty of each rank's tokens."""
    total, rows = 0.0, len(batch["logps"])
    for i in range(rows):
        for k in range(NUM_RANKS):
            tokens = [t for t in range(batch["ranks"].shape[1]) if batch["ranks"][i, t] == k]
            if not tokens:
                continue
            ratio = sum(float(batch["logps"][i, t] - batch["old_logps"][i, t]) for t in tokens) / len(tokens)
            total -= _surrogate(ratio, float(batch["advantages"][i, k]))
            if reference is not None:
                gaps = [float(reference[i, t] - batch["logps"][i, t]) for t in tokens]
                total += beta * sum(math.exp(d) - d - 1 for d in gaps) / len(tokens)
    return total / (rows * NUM_RANKS)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_default_loss_is_minus_the_papers_objective(seed):
    batch = _batch(seed)
    assert float(rank_grpo_loss(**batch, **CLIP).loss) == pytest.approx(_loop(batch), rel=1e-9, abs=1e-12)


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_kl_penalty_equals_the_loop(seed):
    batch = _batch(seed)
    batch["ranks"] = batch["ranks"].clamp(max=NUM_RANKS - 1)
    reference = torch.flip(batch["logps"], dims=[0])
    loss = rank_grpo_loss(**batch, **CLIP, ref_logps=reference, beta=0.3).loss
    assert float(loss) == pytest.approx(_loop(batch, 0.3, reference), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence", "rank"])
@pytest.mark.parametrize("aggregation", ["rank", "token"])
def test_gradients_are_right(level, aggregation):
    batch = _batch(3)
    batch["old_logps"] = batch["logps"] + 0.01  # inside the clip range, where the loss is smooth
    logps = batch.pop("logps").requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return rank_grpo_loss(
            x, **batch, **CLIP, level=level, aggregation=aggregation, ref_logps=batch["old_logps"], beta=0.1
        ).loss

    assert torch.autograd.gradcheck(loss, (logps,))


def test_one_token_ranks_equal_the_token_level():
    batch = _batch(1, length=NUM_RANKS)
    batch["mask"] = torch.ones_like(batch["mask"])
    batch["ranks"] = torch.arange(NUM_RANKS).expand(4, -1)
    by_rank = rank_grpo_loss(**batch, **CLIP, level="rank").loss
    torch.testing.assert_close(by_rank, rank_grpo_loss(**batch, **CLIP, level="token").loss)


def test_one_rank_equals_the_sequence_level():
    batch = _batch(2)
    batch["ranks"] = torch.where(batch["mask"] == 1, 0, -1)
    by_rank = rank_grpo_loss(**batch, **CLIP, level="rank").loss
    torch.testing.assert_close(by_rank, rank_grpo_loss(**batch, **CLIP, level="sequence").loss)


def test_padding_changes_nothing():
    batch = _batch(4)
    pad = {
        name: torch.cat([value, torch.full((4, 5), fill, dtype=value.dtype)], dim=1)
        for name, value, fill in [(n, batch[n], -1 if n == "ranks" else 0) for n in batch if n != "advantages"]
    }
    padded = rank_grpo_loss(**pad, advantages=batch["advantages"], **CLIP).loss
    torch.testing.assert_close(padded, rank_grpo_loss(**batch, **CLIP).loss)


def test_rank_aggregation_ignores_how_many_tokens_a_title_has_and_token_aggregation_does_not():
    short = {
        "logps": torch.tensor([[-1.0, -2.0]]),
        "old_logps": torch.tensor([[-1.01, -1.98]]),
        "advantages": torch.tensor([[1.0, -0.5, 0.0]]),
        "ranks": torch.tensor([[0, 1]]),
        "mask": torch.ones(1, 2),
    }
    long = {
        name: value.repeat_interleave(torch.tensor([3, 1]), dim=1)
        for name, value in short.items()
        if name != "advantages"
    }
    long["advantages"] = short["advantages"]
    torch.testing.assert_close(rank_grpo_loss(**short, **CLIP).loss, rank_grpo_loss(**long, **CLIP).loss)
    token = [float(rank_grpo_loss(**b, **CLIP, aggregation="token").loss) for b in (short, long)]
    assert abs(token[0] - token[1]) > 0.1


def test_overflow_and_early_eos_enter_only_on_request():
    batch = {
        "logps": torch.zeros(1, 3),
        "old_logps": torch.zeros(1, 3),
        "advantages": torch.zeros(1, NUM_RANKS),
        "ranks": torch.tensor([[0, NUM_RANKS, NUM_RANKS + 2]]),
        "mask": torch.ones(1, 3),
    }
    assert float(rank_grpo_loss(**batch, **CLIP).loss) == 0
    assert float(rank_grpo_loss(**batch, **CLIP, overflow_advantage=-0.1).loss) == pytest.approx(0.1 / NUM_RANKS)
    eos = torch.tensor([[1, 0, 0]])
    early = rank_grpo_loss(**batch, **CLIP, early_eos=eos, early_eos_advantage=-0.1).loss
    assert float(early) == pytest.approx(0.1 / NUM_RANKS)


def test_delta_caps_the_unclipped_ratio():
    batch = _batch(5)
    batch["old_logps"] = batch["logps"] - 2.0
    batch["advantages"] = -torch.ones_like(batch["advantages"])
    free = rank_grpo_loss(**batch, **CLIP).loss
    capped = rank_grpo_loss(**batch, **CLIP, delta=1.5).loss
    present = sum(len(set(row[row >= 0].tolist()) & set(range(NUM_RANKS))) for row in batch["ranks"])
    assert float(free) == pytest.approx(math.exp(2) * present / (4 * NUM_RANKS))
    assert float(capped) == pytest.approx(1.5 * present / (4 * NUM_RANKS))


@pytest.mark.parametrize("option", ["level", "aggregation"])
def test_unknown_options_are_refused(option):
    with pytest.raises(ValueError, match=option):
        rank_grpo_loss(**_batch(0), **CLIP, **{option: "nothing"})
