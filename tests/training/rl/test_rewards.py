import math

import pytest
import torch

from convrec.data.catalog import Catalog, Item
from convrec.training.rl.rewards import RankReward, rank_returns

RELEVANCE = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)


def _loop(kind: str, gamma: float | None) -> list[list[float]]:
    size = RELEVANCE.shape[1]
    weight = {
        "exp_inf": lambda j, k: float(j == k),
        "exp": lambda j, k: gamma ** -(j - k) if gamma else 0.0,
        "log": lambda j, k: 1 / math.log2(j + 2),
    }[kind]
    return [[sum(weight(j, k) * row[j] for j in range(k, size)) for k in range(size)] for row in RELEVANCE.tolist()]


@pytest.mark.parametrize(("kind", "gamma"), [("exp_inf", None), ("exp", 2.0), ("exp", 1.3), ("log", None)])
def test_returns_equal_a_loop(kind, gamma):
    expected = torch.tensor(_loop(kind, gamma), dtype=torch.float64)
    torch.testing.assert_close(rank_returns(RELEVANCE, kind, gamma), expected)


@pytest.mark.parametrize("gamma", [None, 1.0, 0.5])
def test_exp_needs_gamma_above_one(gamma):
    with pytest.raises(ValueError, match="gamma"):
        rank_returns(RELEVANCE, "exp", gamma)


def test_reward_keeps_ranks_in_place():
    catalog = Catalog([Item("Heat", 1995), Item("Dune", 2021), Item("Up", 2009)])
    reward = RankReward(catalog, num_ranks=4)
    completion = [{"role": "assistant", "content": "Nowhere (2000)\nHeat (1995)\nUp (2009)\nDune (2020)"}]
    truth = [{"title": "heat", "year": 1995}, {"title": "Up", "year": 2009}, {"title": "Dune", "year": 2021}]
    logged = {}
    dcg = reward([completion], [truth], [["Up"]], prompts=None, log_metric=logged.__setitem__)
    assert dcg == pytest.approx([1 / math.log2(3) + 1 / math.log2(5)])
    assert reward.last_relevance.tolist() == [[0, 1, 0, 1]]
    assert logged == {
        "lists/items": 4.0,
        "lists/in_catalog": 0.75,
        "lists/duplicates": 0.0,
        "lists/seen": 0.25,
        "lists/hits": 2.0,
    }
