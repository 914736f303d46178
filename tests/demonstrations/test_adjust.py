import numpy as np
import torch
from scipy import sparse

from convrec.demonstrations.adjust import adjust_loss, fit_adjust

SETTINGS = {
    "epochs": 60,
    "learning_rate": 0.05,
    "batch_size": 64,
    "weight_penalty": 0.01,
    "bias_penalty": 0.01,
    "seed": 3,
}


def _shifted(rows: int = 2_000, items: int = 12):
    """Scores, a popularity that they ignore, and choices drawn by both."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((rows, items)).astype(np.float32)
    shift = np.linspace(-1.5, 1.5, items)
    chosen = np.argmax(scores + shift + rng.gumbel(size=scores.shape), axis=1)
    positives = sparse.csr_matrix((np.ones(rows), (np.arange(rows), chosen)), shape=scores.shape)
    return scores, positives, shift


def test_adjust_recovers_a_popularity_shift():
    scores, positives, shift = _shifted()
    weight, bias, losses = fit_adjust(scores, positives, **SETTINGS)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(bias - bias.mean(), shift, atol=0.35)
    np.testing.assert_allclose(weight, 1, atol=0.35)


def test_the_same_seed_gives_the_same_numbers():
    scores, positives, _ = _shifted(300)
    first, second = (fit_adjust(scores, positives, **SETTINGS) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])


def test_no_epochs_leave_the_scores_as_they_are():
    scores, positives, _ = _shifted(50)
    weight, bias, losses = fit_adjust(scores, positives, **{**SETTINGS, "epochs": 0})
    assert (weight == 1).all() and (bias == 0).all() and not losses


def test_the_loss_and_its_gradient_equal_the_closed_form():
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    positives = torch.tensor([[1, 0, 0, 2]] * 5, dtype=torch.float64)
    weight = torch.rand(4, generator=generator, dtype=torch.float64).requires_grad_()
    bias = torch.rand(4, generator=generator, dtype=torch.float64).requires_grad_()
    adjust_loss(weight, bias, scores, positives, 5, 0.3, 0.2).backward()
    with torch.no_grad():
        residual = positives - positives.sum(1, keepdim=True) * torch.softmax(weight * scores + bias, dim=1)
        torch.testing.assert_close(bias.grad, -residual.mean(0) + 2 * 0.2 * bias / 5)
        torch.testing.assert_close(weight.grad, -(residual * scores).mean(0) + 2 * 0.3 * (weight - 1) / 5)
