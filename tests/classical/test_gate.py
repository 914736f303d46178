import numpy as np
import pytest
import torch
from scipy import sparse

from convrec.classical import gate
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.gate import Context, Gated, fit_gate
from convrec.classical.guidance import Guidance
from convrec.classical.scores import sparse_scores
from tests.rows import make_row

ROWS, ITEMS = 600, 12


@pytest.fixture(scope="module")
def choices():
    """A term that is to be trusted where it says much, a plain one and a wrong one, and choices drawn so."""
    rng = np.random.default_rng(0)
    values = {kind: rng.random((ROWS, ITEMS)).astype(np.float32) for kind in ("sure", "plain")}
    values["sure"] *= rng.choice([1, 4], (ROWS, 1))
    utility = (values["sure"].max(axis=1, keepdims=True) > 2) * 1.5 * values["sure"] + 2 * values["plain"]
    values["wrong"] = (4 - utility + rng.random((ROWS, ITEMS))).astype(np.float32)
    liked = np.argmax(utility + rng.gumbel(size=utility.shape), axis=1)
    positives = sparse.csr_array((np.ones(ROWS), (np.arange(ROWS), liked)), shape=(ROWS, ITEMS))
    return values, {kind: sparse_scores(sparse.csr_array(own)) for kind, own in values.items()}, positives


def test_weights_follow_what_each_kind_says_of_the_prompt(choices):
    values, terms, _ = choices
    weights = {"sure": 0.5, "plain": 1.0}
    context = {"plain": Context(mean=0.5, scale=0.2, slopes={"sure": 0.3, "plain": -0.1})}
    found = np.concatenate([block.numpy() for _, block in Gated(terms, weights, context).blocks()])
    for row, scores in enumerate(found):
        says = (values["plain"][row].max() - 0.5) / 0.2
        expected = (0.5 + 0.3 * says) * values["sure"][row] + (1 - 0.1 * says) * values["plain"][row]
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_its_formula_and_the_gradient_its_slope(choices):
    values, terms, positives = choices
    excluded = [[row % ITEMS] for row in range(ROWS)]
    pool, matrix = gate._Pool.of(list(terms.values()), positives, excluded), np.full((4, 3), 0.1)
    losses = []
    for row in range(ROWS):
        liked = positives.indices[row]
        if liked not in excluded[row]:
            context = np.array([1, *(own[row].max() for own in values.values())])
            scores = sum(weight * own[row] for weight, own in zip(context @ matrix, values.values(), strict=True))
            scores[excluded[row]] = -np.inf
            losses.append(np.log(np.exp(scores).sum()) - scores[liked])
    found, gradient = pool.losses_and_gradient(matrix)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for place in np.ndindex(matrix.shape):
        step = np.zeros_like(matrix)
        step[place] = 1e-2
        above, below = (pool.losses_and_gradient(matrix + way * step)[0].mean() for way in (1, -1))
        slope = (above - below) / 2e-2
        assert gradient[place] == pytest.approx(slope, abs=2e-3)


def test_held_out_people_choose_between_weights_and_a_context(choices):
    _, terms, positives = choices
    people = np.random.default_rng(1).integers(0, 2**62, ROWS)
    weights, context = fit_gate(terms, positives, [[]] * ROWS, people)
    assert weights["wrong"] == pytest.approx(0, abs=0.05) and weights["plain"] > 0.5
    assert context["sure"].slopes["sure"] > 0.2
    empty = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        noise = {kind: sparse_scores(sparse.csr_array(rng.random((200, ITEMS)))) for kind in terms}
        empty += fit_gate(noise, positives[:200], [[]] * 200, people[:200])[1] == {}
    assert empty >= 9, "chance lets the weights depend on the prompt"
    hidden = [[item] for item in positives.indices]
    assert fit_gate(terms, positives, hidden, people) == (dict.fromkeys(terms, 0.0), {})


def test_the_fit_does_not_depend_on_the_order_of_prompts_or_on_threads(choices):
    _, terms, positives = choices
    people, order = np.arange(ROWS), np.random.default_rng(3).permutation(ROWS)
    weights, _ = fit_gate(terms, positives, [[]] * ROWS, people)
    mixed = {kind: sparse_scores(sparse.csr_array(own[order])) for kind, own in choices[0].items()}
    torch.set_num_threads(2)
    again, _ = fit_gate(mixed, positives[order], [[]] * ROWS, people[order])
    torch.set_num_threads(1)
    assert again == pytest.approx(weights, abs=0.02)


def test_a_fitted_guide_is_saved_with_its_context_and_scaled(catalog, tmp_path):
    rng = np.random.default_rng(5)
    films, words = (
        [("Heat", 1995), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)],
        ["heist", "desert", "balloon", "space"],
    )
    kinds = rng.integers(0, 4, 200)
    rows = [make_row(f"p{place}", [films[kind]], f"a {words[kind]} film") for place, kind in enumerate(kinds)]
    evidence = Evidence.fit(rows, catalog, TfidfEmbedder, neighbours=20, kept=5)
    made = Guidance.fit(evidence, rows, rows[:40], 3, {"name": "tfidf"})
    assert set(made.weights) == set(EVIDENCE) and made.weights["wishes"] >= 0
    asked = [make_row("new", [], "something with a desert")]
    (found,) = made.log_weights(asked)
    assert found.items[found.logs.argmax()] == catalog.find("Dune", 2021)
    context = {"neighbours": Context(mean=1.0, scale=2.0, slopes={"popularity": -0.5, "encoder": 0.25})}
    gated = Guidance(evidence, made.weights, made.embedder, context)
    gated.save(tmp_path)
    again = Guidance.load(tmp_path, catalog)
    assert again.context == context and again.weights == made.weights
    once, twice = (own.total(asked).block(slice(None)).numpy() for own in (again, gated.times(2.0)))
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)
    assert Guidance.load(tmp_path, catalog).times(0.0).log_weights(asked)[0].items.size == 0
