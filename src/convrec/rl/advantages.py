"""Advantages of ranks."""

from typing import Literal

import torch

Normalization = Literal["group", "within_list"]


def rank_advantages(
    returns: torch.Tensor, num_generations: int, normalization: Normalization = "group", scale: bool = True
) -> torch.Tensor:
    """Return A_ik = (r_ik - mean) / (std + 1e-4), each rank over the G lists of its prompt (method, stage 2).

    `within_list` takes mean and standard deviation over the ranks of one list instead. Without `scale` the mean is
    only subtracted. A group without spread gives zeros. Rows of one prompt are consecutive.

    Shape: (B, N), as `returns`. Raises `ValueError` where G does not divide B, or on an unknown normalization.
    """
    if returns.shape[0] % num_generations:
        raise ValueError(f"{returns.shape[0]} rows are no multiple of num_generations = {num_generations}")
    if normalization == "group":
        grouped, dim = returns.view(-1, num_generations, returns.shape[1]), 1
    elif normalization == "within_list":
        grouped, dim = returns, 1
    else:
        raise ValueError(f"normalization = {normalization!r}; use 'group' or 'within_list'")
    centred = grouped - grouped.mean(dim=dim, keepdim=True)
    if scale:
        if grouped.shape[dim] > 1:
            centred = centred / (grouped.std(dim=dim, keepdim=True) + 1e-4)
        # Means of equal floats can differ from them by rounding, which the 1e-4 would not hide in float32.
        spread = grouped.amax(dim=dim, keepdim=True) - grouped.amin(dim=dim, keepdim=True)
        centred = centred * (spread > 0)
    return centred.reshape(returns.shape)
