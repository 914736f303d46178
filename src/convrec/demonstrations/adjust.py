"""Adjust: one weight and one bias for each item, so that the scores fit what people liked (stage 1.4)."""

import numpy as np
import torch
from scipy import sparse


def adjust_loss(
    weight: torch.Tensor,
    bias: torch.Tensor,
    scores: torch.Tensor,
    positives: torch.Tensor,
    penalty_scale: float,
    weight_penalty: float,
    bias_penalty: float,
) -> torch.Tensor:
    """Return the mean negative multinomial log-likelihood of the positives, with its penalties.

    `positives` counts the ground truth; each row's likelihood is that of a softmax over the catalog of
    w ⊙ s + b. Times `penalty_scale` (the number of rows fitted), the loss is the stated objective: the
    log-likelihood minus weight_penalty · ‖w - 1‖² and bias_penalty · ‖b‖².

    Shape: weight, bias (C,); scores, positives (B, C); returns a scalar.
    """
    log_probability = torch.log_softmax(weight * scores + bias, dim=1)
    likelihood = (positives * log_probability).sum(dim=1).mean()
    penalty = weight_penalty * (weight - 1).square().sum() + bias_penalty * bias.square().sum()
    return penalty / penalty_scale - likelihood


def fit_adjust(
    scores: np.ndarray,
    positives: sparse.csr_matrix,
    *,
    epochs: int,
    learning_rate: float,
    batch_size: int,
    weight_penalty: float,
    bias_penalty: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Return w, b and the mean loss of each epoch (Adam on mini-batches; the same seed gives the same numbers).

    Shape: scores and positives (B, C); w and b (C,).
    """
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_items = scores.shape
    weight = torch.ones(num_items, requires_grad=True)
    bias = torch.zeros(num_items, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs))
    losses = []
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(num_rows, generator=generator).split(batch_size):
            batch = rows.numpy()
            loss = adjust_loss(
                weight,
                bias,
                torch.from_numpy(scores[batch]),
                torch.from_numpy(positives[batch].toarray().astype(np.float32)),
                num_rows,
                weight_penalty,
                bias_penalty,
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        schedule.step()
        losses.append(total / num_rows)
    return weight.detach().numpy(), bias.detach().numpy(), losses
