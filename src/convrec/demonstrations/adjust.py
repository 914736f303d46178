"""Adjust: one weight and one bias for each item, so that the scores fit what people liked (method, stage 1.4)."""

import logging
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from convrec.demonstrations.scores import BLOCK, Scores, flat_entries

logger = logging.getLogger(__name__)


class Fit(NamedTuple):
    """w and b of the best epoch, and the mean loss of each epoch, from 0 (w = 1, b = 0), on both sets of rows.

    Shape: weight, bias (C,), float32; losses: one of `epoch`, `loss` (absent at 0), `held_out_loss` an epoch.
    """

    weight: np.ndarray
    bias: np.ndarray
    losses: list[dict[str, float]]
    best_epoch: int


def likelihood_gradient(
    weight: torch.Tensor, bias: torch.Tensor, scores: torch.Tensor, positives: sparse.csr_array
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the negative multinomial log-likelihood of the positives, summed over the rows, and its gradient.

    With n positives in a row, residual = n · softmax(w ⊙ s + b) - positives; the gradient is the sum over rows of
    residual for b, of residual ⊙ s for w: the closed form needs no graph, and one block of memory.

    Shape: weight, bias (C,); scores, positives (rows, C); returns a scalar and twice (C,).
    """
    positions, counts = flat_entries(positives)
    positions, counts = positions.to(scores.device), counts.to(scores)
    totals = torch.from_numpy(positives.sum(axis=1)).to(scores)
    log_probability = torch.log_softmax(torch.addcmul(bias, weight, scores), dim=1)
    loss = -(log_probability.view(-1)[positions] * counts).sum()
    residual = log_probability.exp_().mul_(totals[:, None])
    residual.view(-1)[positions] -= counts
    bias_gradient = residual.sum(dim=0)
    return loss, residual.mul_(scores).sum(dim=0), bias_gradient


def _mean_loss(
    weight: torch.Tensor, bias: torch.Tensor, scores: Scores, positives: sparse.csr_array, rows: np.ndarray
) -> float:
    total = 0.0
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        total += likelihood_gradient(weight, bias, scores.block(block), positives[block])[0].item()
    return total / max(1, len(rows))


def fit_adjust(
    scores: Scores,
    positives: sparse.csr_array,
    held_out: np.ndarray,
    *,
    epochs: int,
    patience: int,
    learning_rate: float,
    batch_size: int,
    weight_penalty: float,
    bias_penalty: float,
    seed: int,
) -> Fit:
    """Return w and b that maximise the log-likelihood minus weight_penalty · ‖w - 1‖² and bias_penalty · ‖b‖².

    Adam on mini-batches of the rows outside `held_out`; the rate falls to 0 along a cosine. It stops after `patience`
    epochs without a lower loss on the held-out rows, and returns the best epoch, which may be 0. Rows without
    positives say nothing and are passed over. The same seed gives the same numbers.

    Shape: scores, positives (B, C); held_out: indices of rows.
    """
    device = scores.block([0]).device
    weight, bias = torch.ones(scores.shape[1], device=device), torch.zeros(scores.shape[1], device=device)
    useful = np.flatnonzero(np.diff(positives.indptr))
    held_out = np.intersect1d(useful, held_out)
    fitted = np.setdiff1d(useful, held_out)
    best = (weight.clone(), bias.clone())
    losses: list[dict[str, float]] = []
    if not epochs or not len(fitted):
        return Fit(weight.cpu().numpy(), bias.cpu().numpy(), losses, 0)
    losses.append({"epoch": 0, "held_out_loss": _mean_loss(weight, bias, scores, positives, held_out)})
    lowest, best_epoch = losses[0]["held_out_loss"], 0
    optimizer = torch.optim.Adam([weight, bias], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    rng = np.random.default_rng(seed)
    for epoch in range(1, epochs + 1):
        total = 0.0
        order = rng.permutation(fitted)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            loss, weight_gradient, bias_gradient = likelihood_gradient(
                weight, bias, scores.block(batch), positives[batch]
            )
            # the mean over the rows of the whole objective, estimated from this batch
            weight.grad = weight_gradient / len(batch) + 2 * weight_penalty * (weight - 1) / len(fitted)
            bias.grad = bias_gradient / len(batch) + 2 * bias_penalty * bias / len(fitted)
            optimizer.step()
            total += loss.item()
        schedule.step()
        held_out_loss = _mean_loss(weight, bias, scores, positives, held_out)
        losses.append({"epoch": epoch, "loss": total / len(fitted), "held_out_loss": held_out_loss})
        logger.info("adjust: epoch %d: loss %.4f, held out %.4f", epoch, total / len(fitted), held_out_loss)
        if held_out_loss < lowest or not len(held_out):
            lowest, best_epoch, best = held_out_loss, epoch, (weight.clone(), bias.clone())
        elif epoch - best_epoch >= patience:
            break
    return Fit(best[0].cpu().numpy(), best[1].cpu().numpy(), losses, best_epoch)
