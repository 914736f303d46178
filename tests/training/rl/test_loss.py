import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.training.rl import loss as loss_module
from convrec.training.rl.loss import LossOutput, Objective, Rollouts

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


def rank_grpo_loss(logps, num_items=None, **options) -> LossOutput:
    """The loss, each option put where it belongs."""
    rollouts = Rollouts(**{name: options.pop(name) for name in Rollouts._fields if name in options})
    return loss_module.rank_grpo_loss(logps, rollouts, Objective(**options), num_items)


LEVELS = ["token", "sequence", "rank"]
AGGREGATIONS = ["rank", "token", "grpo", "bnpo", "dr_grpo", "dapo"]
MAX_LENGTH, NUM_ITEMS = 11, 17.0


def _oracle(batch, level, aggregation, *, beta=0.0, reference=None, overflow=0.0, eos=None, ends=None,
            in_rank=False, sampler=None, cap=3.0):  # fmt: skip
    """The loss as sums over lists, their units, and their tokens, one number at a time."""
    low, high = CLIP["epsilon_low"], CLIP["epsilon_high"]
    per_list = []  # of each list: {unit: [the terms of its tokens]}
    for i in range(len(batch["logps"])):
        tokens = [t for t in range(batch["ranks"].shape[1]) if batch["mask"][i, t]]
        segment = {t: min(int(batch["ranks"][i, t]), NUM_RANKS) for t in tokens}
        ended = {t for t in tokens if eos is not None and eos[i, t]}
        if not in_rank:
            segment |= dict.fromkeys(ended, NUM_RANKS + 1)
        unit = {t: {"token": t, "sequence": 0, "rank": segment[t]}[level] for t in tokens}
        terms: dict[int, list[float]] = {}
        for t in tokens:
            own = [u for u in tokens if unit[u] == unit[t]]
            ratio = math.exp(sum(float(batch["logps"][i, u] - batch["old_logps"][i, u]) for u in own) / len(own))
            if t in ended:
                advantage = float(ends[i])
            else:
                advantage = overflow if segment[t] == NUM_RANKS else float(batch["advantages"][i, segment[t]])
            term = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
            if sampler is not None:
                gaps = [float(batch["old_logps"][i, u] - sampler[i, u]) for u in own]
                gaps = [0.0 if math.isnan(gap) else gap for gap in gaps]
                term *= min(math.exp(sum(gaps) / len(own)), cap)
            if reference is not None:
                gap = float(reference[i, t] - batch["logps"][i, t])
                term += beta * (math.exp(gap) - gap - 1)
            terms.setdefault(segment[t], []).append(term)
        per_list.append(terms)
    rows = len(per_list)
    flat = [[x for values in terms.values() for x in values] for terms in per_list]
    if aggregation == "rank":
        return sum(sum(v) / len(v) for terms in per_list for v in terms.values()) / (rows * NUM_RANKS)
    if aggregation == "grpo":
        return sum(sum(x) / max(1, len(x)) for x in flat) / rows
    given = {"dr_grpo": rows * MAX_LENGTH, "dapo": NUM_ITEMS, "token": NUM_ITEMS}
    return sum(map(sum, flat)) / given.get(aggregation, max(1, sum(map(len, flat))))


def _loss(batch, level="rank", aggregation="rank", **options):
    sizes = {"max_completion_length": MAX_LENGTH, "num_items": NUM_ITEMS}
    return rank_grpo_loss(**batch, **CLIP, level=level, aggregation=aggregation, **sizes, **options)


@given(st.integers(0, 10_000))
@settings(max_examples=60)
def test_default_loss_is_minus_the_papers_objective(seed):
    batch = _batch(seed)
    expected = _oracle(batch, "rank", "rank")
    assert float(rank_grpo_loss(**batch, **CLIP).loss) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("level", LEVELS)
@given(seed=st.integers(0, 10_000), in_rank=st.booleans())
@settings(max_examples=15)
def test_every_level_and_aggregation_equals_the_loop(level, aggregation, seed, in_rank):
    batch = _batch(seed)
    reference, sampler = torch.flip(batch["logps"], dims=[0]), torch.flip(batch["old_logps"], dims=[1]).clone()
    sampler[0, 0] = math.nan
    eos = (torch.rand(4, 9, generator=torch.Generator().manual_seed(seed)) < 0.2) & (batch["mask"] == 1)
    ends = torch.tensor([-0.2, 0.1, 0.0, -0.1], dtype=torch.float64)
    found = _loss(batch, level, aggregation, ref_logps=reference, beta=0.3, overflow_advantage=-0.1,
                  eos=eos, eos_advantages=ends, eos_in_rank=in_rank, sampler_logps=sampler,
                  vllm_importance_sampling_clip_max=1.3)  # fmt: skip
    expected = _oracle(batch, level, aggregation, beta=0.3, reference=reference, overflow=-0.1, eos=eos,
                       ends=ends, in_rank=in_rank, sampler=sampler, cap=1.3)  # fmt: skip
    assert float(found.loss) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert not any(value.requires_grad or value.ndim for value in found.metrics.values())
    assert all(math.isfinite(value) for value in found.metrics.values())


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_with_a_token_an_item_the_loss_is_that_of_tokens_with_the_advantages_of_their_ranks(seed):
    """The plain loop; the end, a unit of its own with advantage 0, adds nothing but its part of the KL."""
    generator = torch.Generator().manual_seed(seed)
    logps, old, reference = -torch.rand(3, 4, NUM_RANKS + 1, generator=generator, dtype=torch.float64)
    advantages = 2 * torch.rand(4, NUM_RANKS, generator=generator, dtype=torch.float64) - 1
    total = 0.0
    for i in range(4):
        for t in range(NUM_RANKS + 1):
            ratio, gap = math.exp(logps[i, t] - old[i, t]), float(reference[i, t] - logps[i, t])
            advantage = float(advantages[i, t]) if t < NUM_RANKS else 0.0
            clipped = min(max(ratio, 1 - CLIP["epsilon_low"]), 1 + CLIP["epsilon_high"])
            total += -min(ratio * advantage, clipped * advantage) + 0.3 * (math.exp(gap) - gap - 1)
    ranks = torch.arange(NUM_RANKS + 1).clamp(max=NUM_RANKS - 1).expand(4, -1)
    eos = torch.arange(NUM_RANKS + 1).expand(4, -1) == NUM_RANKS
    batch = {"logps": logps, "old_logps": old, "advantages": advantages, "ranks": ranks, "mask": torch.ones(4, 4)}
    ends = {"eos": eos, "eos_advantages": torch.zeros(4, dtype=torch.float64)}
    for level in ("rank", "token"):
        found = rank_grpo_loss(**batch, **CLIP, **ends, level=level, ref_logps=reference, beta=0.3)
        assert float(found.loss) == pytest.approx(total / (4 * NUM_RANKS), rel=1e-9)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradients_are_right(level, aggregation):
    batch = _batch(3)
    batch["old_logps"] = batch["logps"] + 0.01  # inside the clip range, where the loss is smooth
    logps = batch.pop("logps").requires_grad_()
    sampler = batch["old_logps"] - 0.2

    def loss(x: torch.Tensor) -> torch.Tensor:
        options = {"ref_logps": batch["old_logps"], "beta": 0.1, "sampler_logps": sampler}
        return _loss({"logps": x, **batch}, level, aggregation, **options).loss

    assert torch.autograd.gradcheck(loss, (logps,))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_clipped_rank_has_no_gradient_and_is_counted_on_its_side(sign):
    batch = _batch(6)
    batch["ranks"] = batch["ranks"].clamp(max=NUM_RANKS - 1)
    batch["advantages"] = torch.full_like(batch["advantages"], sign)
    batch["old_logps"] = batch["logps"] - 0.5 * sign  # past the clip range on the side of the advantage
    batch["logps"] = batch["logps"].clone().requires_grad_()
    output = rank_grpo_loss(**batch, **CLIP)
    output.loss.backward()
    assert batch["logps"].grad.abs().sum() == 0
    sides = float(output.metrics["clip_ratio/low"]), float(output.metrics["clip_ratio/high"])
    assert sides == ((0.0, 1.0) if sign > 0 else (1.0, 0.0))


def test_ratio_metrics_are_of_ranks():
    batch = {
        "logps": torch.tensor([[0.0, 0.0, 0.0]]),
        "old_logps": torch.tensor([[0.0, 0.0, -math.log(3)]]),
        "advantages": torch.zeros(1, NUM_RANKS),
        "ranks": torch.tensor([[0, 0, 1]]),
        "mask": torch.ones(1, 3),
    }
    metrics = rank_grpo_loss(**batch, **CLIP).metrics
    assert float(metrics["ratio/mean"]) == pytest.approx(2)  # ranks of ratio 1 and 3
    assert float(metrics["ratio/q50"]) == pytest.approx(2)
    assert float(metrics["ratio/effective_sample_size"]) == pytest.approx(16 / (2 * 10))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_what_stands_on_padding_may_overflow(level, aggregation):
    batch = {**_batch(4), "ref_logps": _batch(5)["logps"], "sampler_logps": _batch(6)["logps"]}
    losses, grads = [], []
    for fill in (0.0, 1e30, math.nan):
        filled = {n: v.masked_fill(batch["mask"] == 0, fill) if "logps" in n else v for n, v in batch.items()}
        filled["logps"] = (-filled["logps"] if fill else filled["logps"]).abs().neg().requires_grad_()
        output = _loss(filled, level, aggregation, beta=0.1)
        output.loss.backward()
        losses.append(output.loss)
        grads.append(filled["logps"].grad)
        assert all(math.isfinite(value) for value in output.metrics.values())
    for loss, grad in zip(losses, grads, strict=True):
        torch.testing.assert_close(loss, losses[0])
        torch.testing.assert_close(grad, grads[0])


@pytest.mark.parametrize("option", ["level", "aggregation"])
def test_unknown_options_are_refused(option):
    with pytest.raises(ValueError, match=option):
        rank_grpo_loss(**_batch(0), **CLIP, **{option: "nothing"})


def test_dr_grpo_needs_the_length_it_divides_by():
    with pytest.raises(ValueError, match="max_completion_length"):
        rank_grpo_loss(**_batch(0), **CLIP, aggregation="dr_grpo")
