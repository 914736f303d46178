"""Advantages of ranks."""

import torch


def rank_advantages(returns: torch.Tensor, num_generations: int, scale: bool = True) -> torch.Tensor:
    """Return A_ik = (r_ik - mean) / (std + 1e-4) of Rank-GRPO (arXiv 2510.20150).

    Mean and standard deviation of rank k are those of the G lists of the same prompt, which must be consecutive rows.
    Without `scale`, only the mean is subtracted. If all values are equal, the advantages are 0.

    Shape: returns and the result (B, N). Raises `ValueError` if `num_generations` (G) does not divide B.
    """
    if returns.shape[0] % num_generations:
        raise ValueError(f"{returns.shape[0]} rows are not a multiple of num_generations = {num_generations}")
    grouped = returns.view(-1, num_generations, returns.shape[1])
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    if scale:
        deviation = centred.square().sum(dim=1, keepdim=True).div(max(grouped.shape[1] - 1, 1)).sqrt()
        # The mean of equal floats can differ from them by rounding, which the 1e-4 does not hide in float32.
        spread = grouped.amax(dim=1, keepdim=True) > grouped.amin(dim=1, keepdim=True)
        centred = centred / (deviation + 1e-4) * spread
    return centred.reshape(returns.shape)
