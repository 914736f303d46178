"""The Rank-GRPO objective, and the token and sequence levels beside it, as one pure function."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Level = Literal["token", "sequence", "rank"]
Aggregation = Literal["rank", "token", "grpo", "bnpo", "dr_grpo", "dapo"]
_QUANTILES = {"q05": 0.05, "q50": 0.5, "q95": 0.95}


class LossOutput(NamedTuple):
    """A scalar to minimise, and detached 0-d metrics."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


def _segment_mean(values: torch.Tensor, index: torch.Tensor, mask: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the mean of the values of each segment of each row, 0 for an empty one. Shape: as `counts`, (B, S)."""
    return values.new_zeros(counts.shape).scatter_add(1, index, values * mask) / counts.clamp(min=1)


@dataclass(frozen=True)
class Objective:
    """The settings of the loss; `rank_grpo_loss` says what each does."""

    num_ranks: int
    epsilon_low: float
    epsilon_high: float
    delta: float | None = None
    beta: float = 0.0
    level: Level = "rank"
    aggregation: Aggregation = "rank"
    max_completion_length: int | None = None
    overflow_advantage: float = 0.0
    eos_in_rank: bool = False
    vllm_importance_sampling_clip_max: float = 3.0


class Rollouts(NamedTuple):
    """What the loss needs of a batch of sampled lists beside the policy's log-probabilities.

    Shape: old_logps, ref_logps, sampler_logps, ranks (-1 on padding), mask, eos (B, T); advantages (B, N);
    eos_advantages (B,).
    """

    old_logps: torch.Tensor
    advantages: torch.Tensor
    ranks: torch.Tensor
    mask: torch.Tensor
    ref_logps: torch.Tensor | None = None
    sampler_logps: torch.Tensor | None = None
    eos: torch.Tensor | None = None
    eos_advantages: torch.Tensor | None = None


def rank_grpo_loss(
    logps: torch.Tensor, rollouts: Rollouts, objective: Objective, num_items: torch.Tensor | float | None = None
) -> LossOutput:
    """Return minus J of the method (stage 2), with beta times the k3 estimate of KL(policy ‖ reference) added.

    J = 1/(B N) Σ_i Σ_k min(w_ik A_ik, clip(w_ik, 1 - epsilon_low, 1 + epsilon_high) A_ik), where w_ik is the
    exponential of the mean log-ratio over the tokens of rank k (`level="rank"`), of each token (`token`), or of the
    sequence (`sequence`); `delta` caps w_ik in the unclipped term (two-sided clipping). A missing rank adds nothing.

    `aggregation` says what the tokens' terms are divided by:
    `rank`: the mean over the tokens of a rank, summed, over B N, so that every rank weighs the same (the paper).
    `token`, `dapo`: the mean over all tokens of the optimiser step: the sum over `num_items`, their number in all
    processes over the number of processes and micro-batches (default: the tokens of this batch).
    `bnpo`: the mean over all tokens of this batch, a micro-batch of one process.
    `grpo`: the mean over the tokens of a list, then over the lists. `dr_grpo`: the sum over B `max_completion_length`.

    Tokens past rank N form one more rank with advantage `overflow_advantage`; where `eos` is true, the token is a rank
    of its own with its list's `eos_advantages`, or with `eos_in_rank` has that advantage, and the ratio and the mean of
    its rank (the public code). With the defaults neither changes J.

    `sampler_logps` are the log-probabilities under which another engine drew the tokens; each rank (token, sequence)
    is then weighted by exp(mean(old_logps - sampler_logps)), at most `vllm_importance_sampling_clip_max`; a NaN counts
    as no difference.

    Shape: logps (B, T), and see `Rollouts`.

    Raises `ValueError` for an unknown level or aggregation, or `dr_grpo` without `max_completion_length`.
    """
    old_logps, advantages, ranks, mask, ref_logps, sampler_logps, eos, eos_advantages = rollouts
    level, aggregation, num_ranks = objective.level, objective.aggregation, objective.num_ranks
    low, high = 1 - objective.epsilon_low, 1 + objective.epsilon_high
    padding, mask = mask == 0, mask.to(logps.dtype)
    # What stands on padding may overflow, and 0 times infinity is no 0.
    logps, old_logps = logps.masked_fill(padding, 0), old_logps.masked_fill(padding, 0)
    ref_logps, sampler_logps = (
        None if values is None else values.masked_fill(padding, 0) for values in (ref_logps, sampler_logps)
    )
    batch_size = logps.shape[0]
    overflow = advantages.new_full((batch_size, 1), objective.overflow_advantage)
    ends = torch.zeros_like(overflow) if eos_advantages is None else eos_advantages[:, None]
    segment_advantages = torch.cat([advantages, overflow, ends], dim=1).to(logps.dtype)
    index = ranks.clamp(min=0, max=num_ranks)
    with_ends = index if eos is None else index.masked_fill(eos.bool(), num_ranks + 1)
    token_advantages = segment_advantages.gather(1, with_ends)
    index = index if objective.eos_in_rank else with_ends
    counts = mask.new_zeros(batch_size, num_ranks + 2).scatter_add(1, index, mask)
    num_tokens = mask.sum().clamp(min=1)

    # A unit is what has one ratio: a rank (B, S), a list (B, 1), or a token (B, T).
    if level == "rank":
        unit_advantages, present = segment_advantages, counts > 0
    elif level == "sequence":
        unit_advantages, present = segment_advantages[:, :1], counts.sum(1, keepdim=True) > 0
    elif level == "token":
        unit_advantages, present = token_advantages, mask > 0
    else:
        raise ValueError(f"level = {level!r}; use 'token', 'sequence' or 'rank'")

    def unit_mean(values: torch.Tensor) -> torch.Tensor:
        if level == "rank":
            return _segment_mean(values, index, mask, counts)
        return values if level == "token" else (values * mask).sum(1, keepdim=True) / counts.sum(1, True).clamp(min=1)

    def to_tokens(units: torch.Tensor) -> torch.Tensor:
        return units.gather(1, index) if level == "rank" else units.expand_as(logps)

    weight = unit_mean(logps - old_logps).exp()
    clipped = weight.clamp(low, high)
    unclipped = weight if objective.delta is None else weight.clamp(max=objective.delta)
    per_token = -torch.minimum(to_tokens(unclipped) * token_advantages, to_tokens(clipped) * token_advantages)

    with torch.no_grad():
        num_units = present.sum().clamp(min=1)

        def share(flags: torch.Tensor) -> torch.Tensor:
            return (flags & present).sum() / num_units

        units = weight[present] if present.any() else weight.new_ones(1)
        metrics = {
            "ratio/mean": units.mean(),
            "ratio/effective_sample_size": units.sum() ** 2 / (units.square().sum() * num_units),
            "clip_ratio/low": share((weight < low) & (unit_advantages < 0)),
            "clip_ratio/high": share((weight > high) & (unit_advantages > 0)),
        }
        points = units.float().quantile(units.new_tensor(list(_QUANTILES.values())).float())
        metrics |= {f"ratio/{name}": point for name, point in zip(_QUANTILES, points.unbind(), strict=True)}
        if sampler_logps is not None:
            difference = torch.nan_to_num(old_logps - sampler_logps, nan=0.0)
            mismatch = unit_mean(difference).exp()
            cap = objective.vllm_importance_sampling_clip_max
            correction = mismatch.clamp(max=cap)
            metrics["sampler/weight_mean"] = (correction * present).sum() / num_units
            metrics["sampler/weight_max"] = (mismatch * present).max()
            metrics["sampler/truncated"] = share(mismatch > cap)
    if sampler_logps is not None:
        per_token = per_token * to_tokens(correction)

    if objective.beta and ref_logps is not None:
        difference = ref_logps - logps
        kl = difference.exp() - difference - 1
        metrics["kl"] = ((kl * mask).sum() / num_tokens).detach()
        per_token = per_token + objective.beta * kl

    if aggregation == "rank":
        loss = _segment_mean(per_token, index, mask, counts).sum() / (batch_size * num_ranks)
    elif aggregation == "bnpo":
        loss = (per_token * mask).sum() / num_tokens
    elif aggregation == "grpo":
        loss = ((per_token * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()
    elif aggregation in ("token", "dapo"):
        loss = (per_token * mask).sum() / (num_tokens if num_items is None else num_items)
    elif aggregation == "dr_grpo":
        if objective.max_completion_length is None:
            raise ValueError("max_completion_length = None; aggregation 'dr_grpo' divides by it")
        loss = (per_token * mask).sum() / (batch_size * objective.max_completion_length)
    else:
        raise ValueError(f"aggregation = {aggregation!r}; use rank, token, grpo, bnpo, dr_grpo or dapo")
    return LossOutput(loss, metrics)
