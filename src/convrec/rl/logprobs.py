"""Log-probabilities of what is really sampled where rollouts have a repetition penalty or the catalog constraint."""

import functools
from types import MethodType
from typing import Any

import torch
from trl.trainer.utils import FusedCausalLMOutput

from convrec.rl.constrained import RolloutConstraint


def sampled_log_probs(
    logits: torch.Tensor,
    input_ids: torch.Tensor,
    penalty: float,
    temperature: float = 1.0,
    allowed: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each next token's log-probability, and the entropy there, in the distribution that rollouts sample.

    As in transformers' sampling, the logit of every token that the row holds before the position is divided by the
    penalty where positive, multiplied where negative (Keskar et al., arXiv 1909.05858); then by the temperature; and
    tokens that are not `allowed` have no probability. What `attention_mask` leaves out is padding, not held.

    Shape: logits (B, K, vocab), which predict the last K tokens of input_ids (B, L), L > K; allowed as the logits;
    attention_mask as input_ids; returns two (B, K).
    """
    length, kept = input_ids.shape[1], logits.shape[1]
    scores = logits
    if penalty != 1:
        positions = torch.arange(length, device=input_ids.device)
        places = positions.expand_as(input_ids)
        if attention_mask is not None:
            places = places.masked_fill(attention_mask == 0, length)
        first = torch.full((logits.shape[0], logits.shape[2]), length, device=input_ids.device)
        first = first.scatter_reduce(1, input_ids, places, "amin")
        seen = first[:, None, :] < positions[None, -kept:, None]
        scores = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    scores = scores / temperature
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -torch.inf)
    log_probs = scores.float().log_softmax(dim=-1)
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(dim=-1)
    return log_probs.gather(2, input_ids[:, -kept:, None]).squeeze(2), entropy


def add_sampled_head(model: Any, penalty: float, temperature: float, constraint: RolloutConstraint | None) -> None:
    """Let `model(..., labels=labels, fused_lm_head=True)`, TRL's call, answer with those of what is sampled.

    TRL's own head never holds a row of logits; this one holds those of the completions, since penalty and constraint
    differ by position.
    """
    original = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, fused_lm_head: bool = False, labels: Any = None, **kwargs: Any) -> Any:
        if not fused_lm_head:
            return original(*args, labels=labels, **kwargs) if labels is not None else original(*args, **kwargs)
        input_ids, scored = kwargs["input_ids"], labels[:, 1:] != -100
        columns = scored.any(dim=0).nonzero()
        kept = scored.shape[1] - (int(columns[0]) if len(columns) else 0)  # from the first completion token on
        logits = original(**kwargs, logits_to_keep=kept + 1, use_cache=False).logits[:, :-1]
        allowed = None
        if constraint is not None and len(columns):
            allowed = constraint.allowed(input_ids, kwargs["attention_mask"], kept, logits.shape[2])
        values = sampled_log_probs(logits, input_ids, penalty, temperature, allowed, kwargs.get("attention_mask"))
        log_probs, entropy = (value.masked_fill(~scored[:, -kept:], 0) for value in values)
        return FusedCausalLMOutput(log_probs=log_probs, entropy=entropy)

    model.forward = MethodType(forward, model)
