"""The Rank-GRPO objective, and the token and sequence levels beside it, as one pure function."""

from typing import Literal, NamedTuple

import torch

Level = Literal["token", "sequence", "rank"]
Aggregation = Literal["rank", "token"]


class LossOutput(NamedTuple):
    """A scalar to minimise, and detached 0-d metrics."""

    loss: torch.Tensor
    metrics: dict[str, torch.Tensor]


def _segment_mean(values: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor, size: int) -> torch.Tensor:
    """Return the mean of the values of each segment of each row, 0 for an empty one. Shape: (B, size)."""
    zeros = values.new_zeros(values.shape[0], size)
    index = segments.clamp(min=0)
    sums = zeros.scatter_add(1, index, values * mask)
    counts = zeros.scatter_add(1, index, mask)
    return sums / counts.clamp(min=1)


def rank_grpo_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    ranks: torch.Tensor,
    mask: torch.Tensor,
    *,
    num_ranks: int,
    epsilon_low: float,
    epsilon_high: float,
    delta: float | None = None,
    ref_logps: torch.Tensor | None = None,
    beta: float = 0.0,
    aggregation: Aggregation = "rank",
    level: Level = "rank",
    overflow_advantage: float = 0.0,
    early_eos: torch.Tensor | None = None,
    early_eos_advantage: float = 0.0,
) -> LossOutput:
    """Return minus J of the method (stage 2), with beta times the k3 estimate of KL(policy ‖ reference) added.

    J = 1/(B N) Σ_i Σ_k min(w_ik A_ik, clip(w_ik, 1 - epsilon_low, 1 + epsilon_high) A_ik), where w_ik is the
    exponential of the mean log-ratio over the tokens of rank k (`level="rank"`), of each token (`token`), or of the
    sequence (`sequence`); `delta` caps w_ik in the unclipped term (two-sided clipping). A missing rank adds nothing.
    `aggregation="rank"` averages over the tokens of a rank first, so that every rank weighs the same; `token`
    averages over all tokens of the batch, as the public reference does.

    Tokens past rank N form one more rank with advantage `overflow_advantage`; where `early_eos` is true, the token
    is a rank of its own with advantage `early_eos_advantage`. With the defaults neither changes J.

    Shape: logps, old_logps, ref_logps, ranks (-1 on padding), mask, early_eos (B, T); advantages (B, N).
    """
    mask = mask.to(logps.dtype)
    batch_size = logps.shape[0]
    segments = ranks.clamp(max=num_ranks)
    constants = advantages.new_tensor([overflow_advantage, early_eos_advantage]).expand(batch_size, 2)
    segment_advantages = torch.cat([advantages, constants], dim=1)
    if early_eos is not None:
        segments = segments.masked_fill(early_eos.bool(), num_ranks + 1)
    num_segments = num_ranks + 2

    log_ratio = logps - old_logps
    index = segments.clamp(min=0)
    token_advantages = segment_advantages.gather(1, index)
    if level == "rank":
        log_weight = _segment_mean(log_ratio, segments, mask, num_segments).gather(1, index)
    elif level == "sequence":
        means = (log_ratio * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        log_weight = means.expand_as(log_ratio)
    elif level == "token":
        log_weight = log_ratio
    else:
        raise ValueError(f"level = {level!r}; use 'token', 'sequence' or 'rank'")

    weight = log_weight.exp()
    clipped = weight.clamp(1 - epsilon_low, 1 + epsilon_high)
    unclipped = weight if delta is None else weight.clamp(max=delta)
    per_token = -torch.minimum(unclipped * token_advantages, clipped * token_advantages)
    num_tokens = mask.sum().clamp(min=1)

    def token_mean(values: torch.Tensor) -> torch.Tensor:
        return ((values * mask).sum() / num_tokens).detach()

    low = (weight < 1 - epsilon_low) & (token_advantages < 0)
    high = (weight > 1 + epsilon_high) & (token_advantages > 0)
    metrics = {
        "ratio/mean": token_mean(weight),
        "clip_ratio/low": token_mean(low.to(logps.dtype)),
        "clip_ratio/high": token_mean(high.to(logps.dtype)),
    }
    if beta and ref_logps is not None:
        difference = ref_logps - logps
        kl = difference.exp() - difference - 1
        metrics["kl"] = token_mean(kl)
        per_token = per_token + beta * kl

    if aggregation == "rank":
        loss = _segment_mean(per_token, segments, mask, num_segments).sum() / (batch_size * num_ranks)
    elif aggregation == "token":
        loss = (per_token * mask).sum() / num_tokens
    else:
        raise ValueError(f"aggregation = {aggregation!r}; use 'rank' or 'token'")
    return LossOutput(loss, metrics)
