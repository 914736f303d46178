"""Advantages of ranks."""

from typing import Literal

import torch

Normalization = Literal["group", "within_list"]


def rank_advantages(
    returns: torch.Tensor,
    num_generations: int,
    normalization: Normalization = "group",
    scale: bool = True,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return A_ik = (r_ik - mean) / (std + 1e-4) of Rank-GRPO (arXiv 2510.20150).

    Mean and standard deviation of rank k are those of the G lists of the same prompt, which must be consecutive rows.
    `within_list` takes them over the ranks of one list instead. Without `scale`, only the mean is subtracted. If all
    values are equal, the advantages are 0. Rows that are not `kept` are left out of mean and deviation, and get 0.

    Shape: returns and the result (B, N); kept (B,). Raises `ValueError` if `num_generations` (G) does not divide B, or
    for an unknown normalization.
    """
    if returns.shape[0] % num_generations:
        raise ValueError(f"{returns.shape[0]} rows are not a multiple of num_generations = {num_generations}")
    kept = torch.ones_like(returns[:, 0], dtype=torch.bool) if kept is None else kept.bool()
    counted = kept[:, None].expand_as(returns)
    if normalization == "group":
        grouped, counted = (values.reshape(-1, num_generations, returns.shape[1]) for values in (returns, counted))
    elif normalization == "within_list":
        grouped = returns
    else:
        raise ValueError(f"normalization = {normalization!r}; use 'group' or 'within_list'")
    size = counted.sum(dim=1, keepdim=True)
    mean = (grouped * counted).sum(dim=1, keepdim=True) / size.clamp(min=1)
    centred = (grouped - mean) * counted
    if scale:
        deviation = (centred.square().sum(dim=1, keepdim=True) / (size - 1).clamp(min=1)).sqrt()
        # The mean of equal floats can differ from them by rounding, which the 1e-4 does not hide in float32.
        spread = grouped.where(counted, -torch.inf).amax(dim=1, keepdim=True) > grouped.where(counted, torch.inf).amin(
            dim=1, keepdim=True
        )
        centred = centred / (deviation + 1e-4) * spread
    return centred.reshape(returns.shape)
