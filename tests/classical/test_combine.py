import numpy as np
import pytest
from scipy import sparse

from convrec.classical import combine
from convrec.classical.combine import fit_pays, fit_weights, loss_and_gradient
from convrec.classical.scores import BLOCK, sparse_scores

ROWS, ITEMS = BLOCK + 300, 12


@pytest.fixture(scope="module")
def choices():
    """Two informative terms, one that says nothing, one that is wrong, and choices drawn by the first two."""
    rng = np.random.default_rng(0)
    values = dict(zip("abc", rng.standard_normal((3, ROWS, ITEMS)), strict=True))
    utility = 1.5 * values["a"] + 0.5 * values["b"]
    values["wrong"] = -utility + rng.standard_normal((ROWS, ITEMS))
    order = np.argsort(-(utility + rng.gumbel(size=utility.shape)), axis=1)[:, :1]
    positives = np.zeros((ROWS, ITEMS), dtype=np.float32)
    np.put_along_axis(positives, order, 1, axis=1)
    terms = {name: sparse_scores(sparse.csr_array(value.astype(np.float32))) for name, value in values.items()}
    return values, terms, sparse.csr_array(positives)


def test_the_loss_is_its_formula_and_the_gradient_its_slope(choices):
    values, terms, positives = choices
    excluded = [[row % ITEMS, (row + 5) % ITEMS] for row in range(ROWS)]
    open_positives = positives.toarray()
    for row, items in enumerate(excluded):
        open_positives[row, items] = 0
    rows, weights = np.flatnonzero(open_positives.any(axis=1))[::2], np.array([0.5, 1.0, 0.2, 0.1])

    def loss(weights):
        return loss_and_gradient(weights, list(terms.values()), sparse.csr_array(open_positives), excluded, rows)

    scores = sum(weight * value for weight, value in zip(weights, values.values(), strict=True))
    for row, items in enumerate(excluded):
        scores[row, items] = -np.inf
    log_probability = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    expected = -log_probability[open_positives > 0][np.isin(np.flatnonzero(open_positives.any(axis=1)), rows)].mean()
    found, gradient = loss(weights)
    assert found == pytest.approx(expected, rel=1e-5)
    for place, step in enumerate(np.eye(4) * 1e-2):
        slope = (loss(weights + step)[0] - loss(weights - step)[0]) / 2e-2
        assert gradient[place] == pytest.approx(slope, abs=1e-3)


def test_the_weights_are_those_of_the_choices_and_a_wrong_term_has_none(choices):
    _, terms, positives = choices
    weights = fit_weights(terms, {"a": 1.0}, positives, [[]] * ROWS, np.arange(ROWS), 3)
    assert weights.values["b"] / weights.values["a"] == pytest.approx(1 / 3, abs=0.15)
    assert weights.values["a"] == pytest.approx(1.5, abs=0.2), "their scale is that of the likelihood"
    assert weights.values["c"] == pytest.approx(0, abs=0.15)
    assert weights.values["wrong"] == pytest.approx(0, abs=0.15)
    assert weights.ndcg > weights.ndcg_before


def test_scores_that_do_not_fit_in_memory_are_computed_anew_or_kept_as_entries(choices, monkeypatch):
    _, terms, positives = choices
    arguments = (terms, {"a": 1.0}, positives, [[]] * ROWS, np.arange(ROWS), 3)
    kept = fit_weights(*arguments)
    monkeypatch.setattr(combine, "_KEPT", 0)
    assert fit_weights(*arguments) == kept
    monkeypatch.setattr(combine, "_FEW", 2)
    assert fit_weights(*arguments).values == pytest.approx(kept.values, abs=1e-3)


def test_the_ndcg_of_the_fit_is_that_of_the_lists(choices):
    values, terms, positives = choices
    excluded = [[row % ITEMS] for row in range(ROWS)]
    weights = fit_weights(terms, {"b": 1.0}, positives, excluded, np.arange(0, ROWS, 3), 4)
    liked = positives.toarray() > 0
    for scores, found in (
        (values["b"].copy(), weights.ndcg_before),
        (sum(weights.values[name] * value for name, value in values.items()), weights.ndcg),
    ):
        ndcg = []
        for row in range(0, ROWS, 3):
            scores[row, excluded[row]] = -np.inf
            (item,) = np.flatnonzero(liked[row])
            if item not in excluded[row]:
                rank = int((scores[row] > scores[row, item]).sum())
                ndcg.append(1 / np.log2(rank + 2) if rank < 4 else 0)
        assert found == pytest.approx(np.mean(ndcg), abs=1e-5)


def test_without_positives_the_weights_stay(choices):
    _, terms, positives = choices
    hidden = [positives[[row]].indices.tolist() for row in range(ROWS)]
    for excluded, rows in (([[]] * ROWS, np.arange(0)), (hidden, np.arange(ROWS))):
        weights = fit_weights(terms, {"a": 1.0}, positives, excluded, rows, 3)
        assert weights == ({"a": 1.0, "b": 0.0, "c": 0.0, "wrong": 0.0}, None, None)


def test_terms_of_no_use_leave_the_weights_as_they_are(choices):
    _, terms, positives = choices
    weights = fit_weights({"wrong": terms["wrong"]}, {"wrong": 1.0}, positives, [[]] * ROWS, np.arange(ROWS), 3)
    assert weights == ({"wrong": 1.0}, None, None)


def test_a_fit_pays_where_other_people_gain_from_it(choices):
    _, terms, positives = choices
    for start, numbers, pays in (
        ({"c": 1.0}, np.arange(ROWS), True),
        ({"a": 1.5, "b": 0.5}, np.arange(ROWS), False),
        ({"c": 1.0}, np.zeros(ROWS), False),  # one person
    ):
        assert fit_pays(terms, start, positives, [[]] * ROWS, numbers, 3) is pays, start
