"""The objective of Rank-GRPO and of its token-level and sequence-level baselines, as one pure function."""

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
    """Return the mean of the values of each segment of each row, 0 for an empty segment.

    Shape: values, index, mask (B, T); counts, the tokens of each segment, and the result (B, S).
    """
    return values.new_zeros(counts.shape).scatter_add(1, index, values * mask) / counts.clamp(min=1)


@dataclass(frozen=True)
class Objective:
    """The settings of the loss, explained in `rank_grpo_loss`."""

    num_ranks: int
    epsilon_low: float
    epsilon_high: float
    beta: float = 0.0
    level: Level = "rank"
    aggregation: Aggregation = "rank"
    max_completion_length: int | None = None
    overflow_advantage: float = 0.0
    eos_in_rank: bool = False
    vllm_importance_sampling_clip_max: float = 3.0


class Rollouts(NamedTuple):
    """The inputs of the loss for a batch of sampled lists, except the policy's log-probabilities.

    Shape: old_logps, ref_logps, sampler_logps, ranks (0-based, -1 on padding), mask, eos (B, T); advantages (B, N);
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
    """Return the negative objective -J of Rank-GRPO (arXiv 2510.20150), plus beta KL(policy ‖ reference).

    J = 1/(B N) Σ_i Σ_k min(w_ik A_ik, clip(w_ik, 1 - epsilon_low, 1 + epsilon_high) A_ik). The importance ratio w_ik is
    the exponential of the mean of logps - old_logps over the tokens of rank k (`level="rank"`), over the list
    (`sequence`, as in GSPO), or of one token (`token`, as in GRPO). A missing rank contributes 0.
    KL is the k3 estimate, exp(d) - d - 1 with d = ref_logps - logps.

    `aggregation` combines the terms of the tokens:

    - `rank` (the paper): the mean over the tokens of each rank, summed and divided by B N. All ranks weigh the same.
    - `token`, `dapo`: the sum over all tokens divided by `num_items`, the tokens of the optimiser step in all processes
      divided by the number of processes and of micro-batches. Default: the tokens of this batch.
    - `bnpo`: the mean over all tokens of this batch, which is a micro-batch of one process.
    - `grpo`: the mean over the tokens of each list, then over the lists.
    - `dr_grpo`: the sum over all tokens divided by B `max_completion_length`.

    Tokens past rank N form an additional rank with advantage `overflow_advantage`. A token with true `eos` forms its
    own rank with its list's `eos_advantages`. With `eos_in_rank` (the authors' public code) it has this advantage but
    stays in the ratio and the mean of its rank. With the defaults, neither changes J.

    `sampler_logps` are the log-probabilities under which another engine sampled the tokens. Each unit of the ratio
    is then weighted by exp(mean(old_logps - sampler_logps)), at most `vllm_importance_sampling_clip_max`. NaN counts
    as no difference.

    Shape: logps (B, T), in nats; for the others see `Rollouts`.

    Raises `ValueError` for an unknown level or aggregation, or `dr_grpo` without `max_completion_length`.
    """
    old_logps, advantages, ranks, mask, ref_logps, sampler_logps, eos, eos_advantages = rollouts
    level, num_ranks = objective.level, objective.num_ranks
    low, high = 1 - objective.epsilon_low, 1 + objective.epsilon_high
    padding, mask = mask == 0, mask.to(logps.dtype)
    # Values on padding may overflow, and 0 times infinity is NaN.
    logps, old_logps = logps.masked_fill(padding, 0), old_logps.masked_fill(padding, 0)
    batch_size = logps.shape[0]
    overflow = advantages.new_full((batch_size, 1), objective.overflow_advantage)
    ends = torch.zeros_like(overflow) if eos_advantages is None else eos_advantages[:, None]
    segment_advantages = torch.cat([advantages, overflow, ends], dim=1).to(logps.dtype)
    index = ranks.clamp(min=0, max=num_ranks)
    with_ends = index if eos is None else index.masked_fill(eos.bool(), num_ranks + 1)
    token_advantages = segment_advantages.gather(1, with_ends)
    index = index if objective.eos_in_rank else with_ends
    counts = mask.new_zeros(batch_size, num_ranks + 2).scatter_add(1, index, mask)

    # A unit shares one ratio: a rank (B, S), a list (B, 1), or a token (B, T).
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
    per_token = -torch.minimum(to_tokens(weight) * token_advantages, to_tokens(clipped) * token_advantages)
    with torch.no_grad():
        metrics = _ratio_metrics(weight, present, unit_advantages, low, high)
    if sampler_logps is not None:
        with torch.no_grad():
            difference = torch.nan_to_num(old_logps - sampler_logps.masked_fill(padding, 0), nan=0.0)
            mismatch = unit_mean(difference).exp()
            cap = objective.vllm_importance_sampling_clip_max
            correction = mismatch.clamp(max=cap)
            num_units = present.sum().clamp(min=1)
            metrics["sampler/weight_mean"] = (correction * present).sum() / num_units
            metrics["sampler/weight_max"] = (mismatch * present).max()
            metrics["sampler/truncated"] = ((mismatch > cap) & present).sum() / num_units
        per_token = per_token * to_tokens(correction)
    if objective.beta and ref_logps is not None:
        difference = ref_logps.masked_fill(padding, 0) - logps
        kl = difference.exp() - difference - 1
        metrics["kl"] = ((kl * mask).sum() / mask.sum().clamp(min=1)).detach()
        per_token = per_token + objective.beta * kl
    if objective.aggregation == "rank":
        loss = _segment_mean(per_token, index, mask, counts).sum() / (batch_size * num_ranks)
    else:
        loss = _aggregated(per_token * mask, mask, objective, num_items)
    return LossOutput(loss, metrics)


def _ratio_metrics(
    weight: torch.Tensor, present: torch.Tensor, advantages: torch.Tensor, low: float, high: float
) -> dict[str, torch.Tensor]:
    """Return the metrics of the ratios of the units that are present. Shape: weight, present, advantages (B, units)."""
    num_units = present.sum().clamp(min=1)
    units = weight[present] if present.any() else weight.new_ones(1)
    points = units.float().quantile(units.new_tensor(list(_QUANTILES.values())).float())
    return {
        "ratio/mean": units.mean(),
        "ratio/effective_sample_size": units.sum() ** 2 / (units.square().sum() * num_units),
        "clip_ratio/low": ((weight < low) & (advantages < 0) & present).sum() / num_units,
        "clip_ratio/high": ((weight > high) & (advantages > 0) & present).sum() / num_units,
        **{f"ratio/{name}": point for name, point in zip(_QUANTILES, points.unbind(), strict=True)},
    }


def _aggregated(
    terms: torch.Tensor, mask: torch.Tensor, objective: Objective, num_items: torch.Tensor | float | None
) -> torch.Tensor:
    """Return the terms of the tokens, 0 on padding, as one number, by an aggregation of tokens or lists.

    Shape: terms, mask (B, T); returns a scalar.
    """
    num_tokens = mask.sum().clamp(min=1)
    match objective.aggregation:
        case "bnpo":
            return terms.sum() / num_tokens
        case "grpo":
            return (terms.sum(1) / mask.sum(1).clamp(min=1)).mean()
        case "token" | "dapo":
            return terms.sum() / (num_tokens if num_items is None else num_items)
        case "dr_grpo":
            if objective.max_completion_length is None:
                raise ValueError("max_completion_length = None; set it, aggregation 'dr_grpo' divides by it")
            return terms.sum() / (len(terms) * objective.max_completion_length)
    raise ValueError(f"aggregation = {objective.aggregation!r}; use rank, token, grpo, bnpo, dr_grpo or dapo")
