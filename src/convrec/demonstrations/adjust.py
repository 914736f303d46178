"""Adjust: one weight and one bias for each item, so that the scores fit what people liked (method, stage 1.4)."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse

from convrec.classical.likelihood import multinomial_residual
from convrec.classical.scores import Blocks, Subset, row_blocks, top_items
from convrec.evaluation.metrics import ndcg

logger = logging.getLogger(__name__)

LEARNING_RATE = 0.05
PATIENCE = 3  # epochs without a better likelihood on held-out prompts
PENALTY = 0.01  # as published, of w and of b


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
    """Return the loss of w ⊙ s + b, and its gradient by w and b.

    The gradient is the sum over rows of the residual for b, of residual ⊙ s for w: the closed form needs no graph, and
    one block of memory. Shape: weight, bias (C,); scores, positives (rows, C); returns a scalar and twice (C,).
    """
    loss, residual = multinomial_residual(torch.addcmul(bias, weight, scores), positives)
    bias_gradient = residual.sum(dim=0)
    return loss, residual.mul_(scores).sum(dim=0), bias_gradient


def _mean_loss(
    weight: torch.Tensor, bias: torch.Tensor, scores: Blocks, positives: sparse.csr_array, rows: np.ndarray
) -> float:
    total = 0.0
    for part in row_blocks(len(rows), scores.shape[1]):
        block = rows[part]
        total += likelihood_gradient(weight, bias, scores.block(block), positives[block])[0].item()
    return total / max(1, len(rows))


def fit_adjust(
    scores: Blocks,
    positives: sparse.csr_array,
    held_out: np.ndarray,
    *,
    epochs: int,
    batch_size: int,
    seed: int,
    learning_rate: float = LEARNING_RATE,
    patience: int = PATIENCE,
) -> Fit:
    """Return w and b that maximise the log-likelihood minus `PENALTY` · (‖w - 1‖² + ‖b‖²).

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
            weight.grad = weight_gradient / len(batch) + 2 * PENALTY * (weight - 1) / len(fitted)
            bias.grad = bias_gradient / len(batch) + 2 * PENALTY * bias / len(fitted)
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


def keep_if_better(
    fit: Fit,
    scores: Blocks,
    positives: sparse.csr_array,
    held_out: np.ndarray,
    excluded: Sequence[Sequence[int]],
    size: int,
) -> Fit:
    """Return the fit, or that of epoch 0 (w = 1, b = 0) where the held-out rows' lists have a higher NDCG without it.

    The likelihood is of all that was liked; a better one can come with worse lists. `excluded` items enter no list.
    Shape: scores, positives (B, C); held_out: indices of rows.
    """
    rows, liked = Subset(scores, held_out), positives[held_out].toarray() > 0
    seen, numbers = [excluded[row] for row in held_out], liked.sum(axis=1)

    def mean_ndcg(*weight_and_bias: np.ndarray) -> float:
        top = top_items(rows, size, seen, *weight_and_bias)[0]
        hits = np.take_along_axis(liked, np.maximum(top, 0), axis=1) & (top >= 0)
        values = ndcg(hits, numbers, top.shape[1])[numbers > 0]
        return float(values.mean()) if len(values) else 0.0

    before, after = mean_ndcg(), mean_ndcg(fit.weight, fit.bias)
    logger.info("adjust: NDCG@%d of the held-out prompts %.4f, before %.4f", size, after, before)
    if after >= before:
        return fit
    return Fit(np.ones_like(fit.weight), np.zeros_like(fit.bias), fit.losses, 0)
