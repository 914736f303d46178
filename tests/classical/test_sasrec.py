import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from convrec.classical import sasrec
from convrec.classical.sasrec import SasRec, _merged, _Network, histories, history
from tests.rows import make_row

HEAT, DUNE, UP, ALIEN = 0, 2, 3, 4  # places in the catalog


@pytest.mark.parametrize(
    ("known", "told", "merged"),
    [
        ([], [1, 2], [1, 2]),
        ([1, 2, 3], [2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [5, 6], [1, 2, 3, 5, 6]),
        ([1, 2, 2], [2, 2, 2], [1, 2, 2, 2]),  # bought three times, then once more
        ([0, 4, 5], [2, 3, 4, 5, 6], [0, 2, 3, 4, 5, 6]),  # the later part knows more of what came before
        ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
    ],
)
def test_a_later_part_of_a_history_continues_it(known, told, merged):
    assert _merged(known, told) == merged


def test_histories_are_in_order_of_time_without_what_was_disliked(catalog):
    def row(date, seen, liked, **more):
        return make_row(date, liked, date=date, seen_titles=seen, **more)

    later = row("2022-02-01", ["Heat", "Up"], [("Alien", 1979), ("Unknown", 1950)], user_id="ann")
    first = row("2022-01-01", ["Dune (2021)", "Up"], [("Heat", 1995)], user_id="ann", disliked_titles=["Up"])
    other = row("2022-01-15", [], [("Up", 2009)], user_id="bob")
    assert histories([later, other, first], catalog) == [[DUNE, HEAT, UP, ALIEN], [UP]]
    repeated = {**first, "seen_titles": ["Up"], "repeatable_titles": ["Heat", "Dune (2021)", "Heat"]}
    assert history(repeated, catalog) == [HEAT, DUNE, HEAT]


def _block(x, weights):
    """One block of the paper by hand: x + attention(norm(x)), then y + W2 ReLU(W1 norm(y) + b1) + b2."""

    def norm(values, name):
        scaled = (values - values.mean(-1, keepdims=True)) / np.sqrt(values.var(-1, keepdims=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    size = x.shape[-1]
    inputs = norm(x, "norm1") @ weights["self_attn.in_proj_weight"].T + weights["self_attn.in_proj_bias"]
    query, key, value = np.split(inputs, 3, axis=-1)
    logits = np.where(np.tri(len(x)) > 0, query @ key.T / np.sqrt(size), -np.inf)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    y = x + shares @ value @ weights["self_attn.out_proj.weight"].T + weights["self_attn.out_proj.bias"]
    inner = np.maximum(norm(y, "norm2") @ weights["linear1.weight"].T + weights["linear1.bias"], 0)
    return y + inner @ weights["linear2.weight"].T + weights["linear2.bias"], norm


def test_the_network_is_that_of_the_paper():
    torch.manual_seed(3)
    network = _Network(num_items=7, length=5, factors=8, dropout=0.3).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    weights = {name: value.double().numpy() for name, value in network.state_dict().items()}
    x = weights["items.weight"][[4, 0, 4, 2]] + weights["positions.weight"][:4]
    for block in range(sasrec._BLOCKS):
        prefix = f"blocks.layers.{block}."
        x, norm = _block(x, {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)})
    ends = {name: weights[f"blocks.{name}"] for name in ("norm.weight", "norm.bias")}
    mean, deviation = x.mean(-1, keepdims=True), np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    wanted = ((x - mean) / deviation * ends["norm.weight"] + ends["norm.bias"]) @ weights["items.weight"][:-1].T
    with torch.no_grad():
        padded = torch.tensor([[4, 0, 4, 2, 7]])
        found = network.scores(network(padded))[0, :4].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def _fit(known, asked, wanted, num_items, **settings):
    positives = sparse.csr_array(np.eye(num_items, dtype=np.float32)[wanted])
    return SasRec(known, asked, positives, **{"factors": 16, "dropout": 0.1, "seed": 5, **settings})


SIZE = 9
CIRCLE = [[(start + sign * n) % SIZE for n in range(6)] for start in range(SIZE) for sign in (1, -1)] * 3
ASKED, NEXT = [[1, 2, 3], [3, 2, 1], [5, 4], [4, 5]], [4, 0, 3, 6]


@pytest.mark.parametrize("most_scored", [4000, 8])
def test_the_order_of_a_history_decides_what_comes_next(monkeypatch, most_scored):
    """On a circle of items each has the same neighbours and likes; only the order tells the direction."""
    settings = {"_MOST_STEPS": 240, "_CHECK": 40, "_LEARNING_RATE": 5e-3, "_MOST_SCORED": most_scored, "_DRAWN": 60}
    for name, value in settings.items():
        monkeypatch.setattr(sasrec, name, value)
    assert _fit(CIRCLE, ASKED, NEXT, SIZE).scores(ASKED).argmax(axis=1).tolist() == NEXT


def test_the_seed_decides_the_model_and_the_best_validation_the_weights(monkeypatch):
    monkeypatch.setattr(sasrec, "_CHECK", 5)
    losses = []
    measured = SasRec._loss
    monkeypatch.setattr(SasRec, "_loss", lambda *own: losses.append(measured(*own)) or losses[-1])
    monkeypatch.setattr(sasrec, "_LEARNING_RATE", 3e-2)  # soon too far
    state = torch.get_rng_state()
    model = _fit(CIRCLE, ASKED, NEXT, SIZE, dropout=0.0)
    assert torch.equal(torch.get_rng_state(), state), "other draws stay"
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + sasrec._PATIENCE < sasrec._MOST_STEPS // 5
    positives = sparse.csr_array(np.eye(SIZE, dtype=np.float32)[NEXT])
    assert measured(model, ASKED, positives) == losses[best]
    scores = model.scores(ASKED)
    np.testing.assert_array_equal(_fit(CIRCLE, ASKED, NEXT, SIZE, dropout=0.0).scores(ASKED), scores)
    assert not np.array_equal(_fit(CIRCLE, ASKED, NEXT, SIZE, dropout=0.0, seed=6).scores(ASKED), scores)


def test_the_estimated_loss_is_that_of_the_softmax(monkeypatch):
    torch.manual_seed(3)
    network, hidden, targets = _Network(50, 5, 8, 0.0), torch.randn(20, 8), torch.arange(20)
    exact = nn.functional.cross_entropy(network.scores(hidden), targets)
    assert network.loss(hidden, targets) == exact
    monkeypatch.setattr(sasrec, "_MOST_SCORED", 49)
    assert network.loss(hidden, targets).item() == pytest.approx(exact.item(), abs=0.05)


def test_what_nobody_liked_comes_last_and_a_prompt_without_items_has_equal_scores(monkeypatch):
    monkeypatch.setattr(sasrec, "_MOST_STEPS", 5)
    monkeypatch.setattr(sasrec, "_CHECK", 5)
    model = _fit([[1, 2, 3], [2, 3, 1]], [[1, 2]], [3], 6)
    empty, unknown, known = model.scores([[], [5, 0], [5, 1]])
    assert not empty.any() and not unknown.any()
    assert known[[1, 2, 3]].min() > known[[0, 4, 5]].max()
    assert not _fit([], [], [], 3).scores([[1]]).any(), "no history at all"
