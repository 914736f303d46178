import numpy as np
import pytest
import torch
from scipy import sparse

from convrec.classical import gate
from convrec.classical.crossfit import CrossFitted
from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.gate import Gated, fit_gate
from convrec.classical.guidance import Guidance
from convrec.classical.scores import sparse_scores
from tests.rows import make_row

ROWS, ITEMS = 1600, 12


@pytest.fixture(scope="module")
def choices():
    """A term that is to be trusted where it says much, a plain one and a wrong one, and choices drawn so."""
    rng = np.random.default_rng(0)
    values = {kind: rng.random((ROWS, ITEMS)).astype(np.float32) for kind in ("sure", "plain")}
    values["sure"] *= rng.choice([1, 4], (ROWS, 1))
    utility = (values["sure"].max(axis=1, keepdims=True) > 2) * 2.5 * values["sure"] + 2 * values["plain"]
    values["wrong"] = (4 - utility + rng.random((ROWS, ITEMS))).astype(np.float32)
    liked = np.argmax(utility + rng.gumbel(size=utility.shape), axis=1)
    positives = sparse.csr_array((np.ones(ROWS), (np.arange(ROWS), liked)), shape=(ROWS, ITEMS))
    return values, {kind: sparse_scores(sparse.csr_array(own)) for kind, own in values.items()}, positives


def test_the_net_adds_to_the_best_items_and_leaves_the_others_below_in_their_order(choices, monkeypatch):
    monkeypatch.setattr(gate, "_BEST", 5)
    values, terms, _ = choices
    net = _net(3)
    weights = {"sure": 0.5, "plain": 1.0, "wrong": 0.0}
    with torch.no_grad():
        found = np.concatenate([block.numpy() for _, block in Gated(terms, weights, net).blocks()])
        for row in range(0, ROWS, 7):
            own = np.stack([values[kind][row] for kind in weights])
            plain = 0.5 * own[0] + own[1]
            order = np.argsort(-plain)
            added = net(torch.from_numpy(own.T[None]), torch.from_numpy(own.max(axis=1)[None]))[0].numpy()
            expected = (plain + added)[order[:5]]
            np.testing.assert_allclose(found[row][order[:5]], expected, rtol=1e-4, atol=1e-5)
            shift = expected.min() - plain[order[4]]
            np.testing.assert_allclose(found[row][order[5:]], plain[order[5:]] + shift, rtol=1e-4, atol=1e-5)


def _net(num_kinds):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = gate.Net(num_kinds).eval()
        net.standardize(torch.randn(5, 4, num_kinds), torch.randn(5, num_kinds))
        torch.nn.init.normal_(net.last.weight)
    return net


def test_the_loss_is_its_formula_and_the_gradient_its_slope(choices):
    values, terms, positives = choices
    excluded = [[row % ITEMS] for row in range(ROWS)]
    weights = np.array([0.1, 0.2, 0.3])
    pool = gate._Pool.of(list(terms.values()), [1.0] * 3, positives, excluded)
    losses = []
    for row in range(ROWS):
        liked = positives.indices[row]
        if liked not in excluded[row]:
            scores = sum(weight * own[row] for weight, own in zip(weights, values.values(), strict=True))
            scores[excluded[row]] = -np.inf
            losses.append(np.log(np.exp(scores).sum()) - scores[liked])
    loss, gradient = pool.loss_and_gradient(weights)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    for place in range(3):
        step = np.zeros(3)
        step[place] = 1e-2
        above, below = (pool.loss_and_gradient(weights + way * step)[0] for way in (1, -1))
        assert gradient[place] == pytest.approx((above - below) / 2e-2, abs=2e-3)


def test_held_out_people_choose_between_weights_and_a_net(choices):
    _, terms, positives = choices
    people = np.random.default_rng(1).integers(0, 2**62, ROWS)
    weights, net = fit_gate(terms, positives, [[]] * ROWS, people)
    assert weights["wrong"] == pytest.approx(0, abs=0.05) and weights["plain"] > 0.5
    scored = [np.concatenate([b.numpy() for _, b in Gated(terms, weights, own).blocks()]) for own in (net, None)]
    liked = [torch.log_softmax(torch.from_numpy(own), 1)[np.arange(ROWS), positives.indices].mean() for own in scored]
    assert liked[0] > liked[1] + 0.02, "what is sure counts where it says much"
    for seed in range(5):
        rng = np.random.default_rng(seed)
        noise = {kind: sparse_scores(sparse.csr_array(rng.random((ROWS, ITEMS)))) for kind in terms}
        assert fit_gate(noise, positives, [[]] * ROWS, people)[1] is None, "chance makes a net"
    few = {kind: sparse_scores(sparse.csr_array(own[:100])) for kind, own in choices[0].items()}
    assert fit_gate(few, positives[:100], [[]] * 100, people[:100])[1] is None, "too few prompts for a net"
    hidden = [[item] for item in positives.indices]
    assert fit_gate(terms, positives, hidden, people) == (dict.fromkeys(terms, 0.0), None)


def test_the_fit_does_not_depend_on_the_order_of_prompts_or_on_threads(choices):
    _, terms, positives = choices
    people, order = np.arange(ROWS), np.random.default_rng(3).permutation(ROWS)
    weights, _ = fit_gate(terms, positives, [[]] * ROWS, people)
    mixed = {kind: sparse_scores(sparse.csr_array(own[order])) for kind, own in choices[0].items()}
    torch.set_num_threads(2)
    again, _ = fit_gate(mixed, positives[order], [[]] * ROWS, people[order])
    torch.set_num_threads(1)
    assert again == pytest.approx(weights, abs=0.02)


def test_a_fitted_guide_is_saved_with_its_net_and_scaled(catalog, tmp_path):
    rng = np.random.default_rng(5)
    films = [("Heat", 1995), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)]
    words = ["heist", "desert", "balloon", "space"]
    kinds = rng.integers(0, 4, 200)
    rows = [make_row(f"p{place}", [films[kind]], f"a {words[kind]} film") for place, kind in enumerate(kinds)]
    evidence = Evidence.fit(rows, catalog, TfidfEmbedder, neighbours=20, kept=5)
    parts = CrossFitted.fit(rows, catalog, TfidfEmbedder, neighbours=20, kept=5)
    made = Guidance.fit(evidence, parts, rows, 3, {"name": "tfidf"})
    assert set(made.weights) == set(EVIDENCE) and made.weights["wishes"] >= 0
    asked = [make_row("new", [], "something with a desert")]
    (found,) = made(asked)
    assert found.items[found.logs.argmax()] == catalog.find("Dune", 2021)
    gated = Guidance(evidence, made.weights, made.embedder, _net(len(EVIDENCE)))
    gated.save(tmp_path)
    again = Guidance.load(tmp_path, catalog)
    assert again.weights == made.weights
    before, once, twice = (own.total(asked).block(slice(None)).numpy() for own in (gated, again, gated.times(2.0)))
    np.testing.assert_array_equal(once, before)
    np.testing.assert_allclose(twice, 2 * once, rtol=1e-5)
    assert Guidance.load(tmp_path, catalog).times(0.0)(asked)[0].items.size == 0
