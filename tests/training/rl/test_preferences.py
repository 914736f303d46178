import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convrec.generation.pretrained import load_tokenizer
from convrec.generation.processors import CatalogConstraint
from convrec.generation.trie import ListRequest, catalog_trie
from convrec.training.embedded import END
from convrec.training.rl.preferences import PreferredLists, softmax_dpo_loss
from tests.training.rl.tiny import CATALOG

HEAT, UP, DUNE, HER = range(4)


@pytest.mark.parametrize("num_rejected", [1, 3])
def test_loss_and_gradient_are_those_of_the_published_formulas_in_a_loop(num_rejected):
    draw = torch.Generator().manual_seed(0)
    policy, reference = (torch.randn(5, 1 + num_rejected, generator=draw, dtype=torch.float64) for _ in range(2))
    beta, losses = 0.3, []
    ours, plain = policy.clone().requires_grad_(), policy.clone().requires_grad_()
    for row in range(5):
        chosen = beta * (plain[row, 0] - reference[row, 0])
        rejected = [beta * (plain[row, d] - reference[row, d]) for d in range(1, 1 + num_rejected)]
        if num_rejected == 1:  # DPO
            losses.append(-torch.log(1 / (1 + torch.exp(rejected[0] - chosen))))
        else:  # S-DPO
            total = sum(torch.exp(one - chosen) for one in rejected)
            losses.append(-torch.log(1 / (1 + torch.exp(torch.log(total)))))
    expected = sum(losses) / 5
    loss = softmax_dpo_loss(ours - reference, beta)
    loss.backward(), expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-10, atol=1e-14)


def test_the_loss_of_ratios_far_apart_is_finite():
    far = torch.tensor([[-1e4, 1e4, 0.0]], requires_grad=True)
    softmax_dpo_loss(far, 1.0).backward()
    assert far.grad.isfinite().all() and far.grad[0, 0] == pytest.approx(-1) and far.grad[0, 1] == pytest.approx(1)


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="module")
def lists(tokenizer):
    return PreferredLists(CATALOG, tokenizer)


@pytest.mark.parametrize(
    ("written", "liked", "banned", "expected"),
    [
        ([HEAT, UP], [("Dune", 2021)], (), [DUNE, HEAT]),
        ([HEAT, UP], [("Up", 2010), ("Dune", None), ("Her", 2013)], (), [UP, DUNE]),  # more than the list holds
        ([HEAT, UP], [("Dune", 2021), ("Her", 2013)], {DUNE}, [HER, HEAT]),
        ([HEAT, UP], [("Jaws", 1975)], (), [HEAT, UP]),  # not in the catalog
        ([HEAT], [{"title": "Up", "year": 2009}], (), [UP]),
    ],
)
def test_what_was_liked_comes_first(lists, written, liked, banned, expected):
    assert lists.items(written, liked, banned) == expected


@given(st.data())
def test_a_preferred_list_may_be_written_under_the_constraint(lists, tokenizer, data):
    """It is as long, without repetition or what is banned, and its tokens are those that the trie lets through."""
    banned = data.draw(st.sets(st.integers(0, 3), max_size=2))
    written = data.draw(st.permutations(sorted({0, 1, 2, 3} - banned)))[: data.draw(st.integers(1, 2))]
    liked = data.draw(st.lists(st.sampled_from([(item.title, item.year) for item in CATALOG.items]), max_size=5))
    items = lists.items(written, liked, banned)
    assert len(items) == len(written) == len(set(items)) and banned.isdisjoint(items)
    completion = lists.tokens(written)
    assert tokenizer.decode(completion) == "\n".join(str(CATALOG.items[item]) for item in written) + END
    assert lists.prefer(completion, liked, banned) == lists.tokens(items)
    trie = catalog_trie(CATALOG, tokenizer)
    processor, ids = CatalogConstraint(trie, [ListRequest(len(items), banned)]), [1, 2]
    for token in lists.tokens(items):
        assert processor(torch.tensor([ids]), torch.zeros(1, len(tokenizer)))[0, token] == 0
        ids.append(token)
