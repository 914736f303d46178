import numpy as np
import pytest
import torch
from scipy import sparse

from convrec.classical.scores import Scores, top_items
from convrec.demonstrations.adjust import Fit, fit_adjust, keep_if_better, likelihood_gradient
from convrec.demonstrations.quality import popularity

SETTINGS = {"epochs": 60, "patience": 60, "batch_size": 64, "seed": 3}
NOTHING = np.array([], dtype=np.int64)


def _as_scores(values: np.ndarray) -> Scores:
    """Scores whose matrix is `values`."""
    return Scores(values.astype(np.float32), np.eye(values.shape[1], dtype=np.float32), sparse.csr_array(values.shape))


def _shifted(rows: int, shift_of_weight: float = 0.0):
    """Scores, what they are wrong about (a bias and, if wanted, a weight), and choices drawn by both."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((rows, 12))
    weight, bias = 1 + shift_of_weight * np.linspace(1, -1, 12), np.linspace(-1.5, 1.5, 12)
    chosen = np.argmax(weight * values + bias + rng.gumbel(size=values.shape), axis=1)
    positives = sparse.csr_array((np.ones(rows, np.float32), (np.arange(rows), chosen)), shape=values.shape)
    return _as_scores(values), positives, weight, bias


@pytest.mark.parametrize("shift_of_weight", [0.0, 0.8])
def test_adjust_recovers_a_popularity_shift_and_weights(shift_of_weight):
    scores, positives, weight, bias = _shifted(6_000, shift_of_weight)
    fit = fit_adjust(scores, positives, np.arange(0, 6_000, 10), **SETTINGS)
    assert fit.losses[-1]["loss"] < fit.losses[1]["loss"]
    assert fit.losses[fit.best_epoch]["held_out_loss"] < fit.losses[0]["held_out_loss"]
    np.testing.assert_allclose(fit.bias - fit.bias.mean(), bias, atol=0.35)
    np.testing.assert_allclose(fit.weight, weight, atol=0.35)
    before, after = (top_items(scores, 1, [[]] * 6_000, *wb)[0] for wb in ((), (fit.weight, fit.bias)))
    _, distance = popularity(positives, {"before": before, "after": after})
    assert distance["after"] < distance["before"]


def test_it_stops_when_the_held_out_rows_fit_worse_and_returns_the_best_epoch():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((60, 30))
    chosen = rng.integers(0, 30, 60)  # nothing to learn: fitting the rows is memorising them
    positives = sparse.csr_array((np.ones(60, np.float32), (np.arange(60), chosen)), shape=values.shape)
    fit = fit_adjust(_as_scores(values), positives, np.arange(30), **{**SETTINGS, "patience": 2, "learning_rate": 0.5})
    held_out = [losses["held_out_loss"] for losses in fit.losses]
    assert held_out.index(min(held_out)) == fit.best_epoch == len(fit.losses) - 3 < SETTINGS["epochs"]


@pytest.mark.parametrize("epochs", [0, 1])
def test_without_epochs_or_positives_the_scores_stay_as_they_are(epochs):
    scores, positives, _, _ = _shifted(50)
    empty = sparse.csr_array(positives.shape, dtype=np.float32) if epochs else positives
    fit = fit_adjust(scores, empty, NOTHING, **{**SETTINGS, "epochs": epochs})
    assert (fit.weight == 1).all() and (fit.bias == 0).all() and not fit.losses


@pytest.mark.parametrize("duplicates", [False, True])
def test_the_closed_form_is_the_gradient_of_the_likelihood(duplicates):
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    counts = torch.tensor([[1, 0, 0, 2], [0, 1, 0, 0], [0, 0, 0, 0], [3, 1, 1, 1], [0, 0, 1, 0]], dtype=torch.float64)
    weight = torch.rand(4, generator=generator, dtype=torch.float64).requires_grad_()
    bias = torch.rand(4, generator=generator, dtype=torch.float64).requires_grad_()
    expected = -(counts * torch.log_softmax(weight * scores + bias, dim=1)).sum()
    expected.backward()
    with torch.no_grad():
        positives = sparse.csr_array(counts.numpy())
        if duplicates:  # each entry in two halves
            halves = (np.repeat(positives.data / 2, 2), np.repeat(positives.indices, 2), 2 * positives.indptr)
            positives = sparse.csr_array(halves, shape=positives.shape)
        loss, weight_gradient, bias_gradient = likelihood_gradient(weight, bias, scores, positives)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(weight_gradient, weight.grad)
    torch.testing.assert_close(bias_gradient, bias.grad)


@pytest.mark.parametrize(("bias", "kept"), [([0, 0, 2, 0], True), ([0, 0, 0, 0], True), ([0, 0, -2, 0], False)])
def test_a_fit_that_worsens_the_lists_of_held_out_rows_is_left_out(bias, kept):
    scores = _as_scores(np.array([[3, 2, 1, 0], [3, 2, 1, 0], [0, 5, 0, 0]]))
    positives = sparse.csr_array(np.array([[0, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 0]], dtype=np.float32))
    fit = Fit(np.ones(4, np.float32), np.array(bias, dtype=np.float32), [{"epoch": 0, "held_out_loss": 1.0}], 3)
    found = keep_if_better(fit, scores, positives, np.array([0, 1]), [[0], [], []], 2)
    assert (found.best_epoch, found.bias.tolist()) == ((3, bias) if kept else (0, [0] * 4))
    assert found.losses == fit.losses
    nothing = keep_if_better(fit, scores, positives, NOTHING, [[0], [], []], 2)
    assert nothing is fit
