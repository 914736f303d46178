import numpy as np
import pytest
from scipy import sparse

from convrec.classical import collaborative
from convrec.classical.collaborative import Ease, ItemKnn, Likes, Named, named_items
from convrec.data.conversations import person_key
from tests.rows import make_row

HEAT, DUNE_1984, DUNE, UP, ALIEN = range(5)


def _row(conversation, *liked, seen=(), **more):
    return make_row(conversation, liked, seen_titles=list(seen), **more)


def test_likes_are_of_persons(catalog):
    rows = [
        _row("a", ("Heat", 1995), seen=["up"], user_id="ann"),
        _row("b", ("Alien", 1979), ("Unknown", 2000), user_id="ann"),
        _row("c", ("Heat", 1995), seen=["Alien", "Up"], disliked_titles=["up"], user_id=""),
    ]
    likes = Likes.of(rows, catalog)
    assert likes.people.tolist() == [person_key(rows[0]), person_key(rows[2])]
    assert likes.matrix.toarray().tolist() == [[1, 0, 0, 1, 1], [1, 0, 0, 0, 1]]


def test_likes_count_from_the_month_in_which_they_are_told(catalog):
    rows = [
        _row("a", ("Heat", 1995), user_id="ann", date="2022-03-01"),
        _row("b", ("Alien", 1979), ("Heat", 1995), user_id="ann", date="2022-01-20"),
        _row("c", ("Up", 2009), seen=["Alien"], date="2022-02-28"),
    ]
    likes = Likes.of(rows, catalog)
    assert likes.matrix.toarray().tolist() == [[1, 0, 0, 0, 1], [0, 0, 0, 1, 1]]
    assert (likes.months - 12 * 2022).tolist() == [1, 1, 2, 2]


def test_a_conversation_names_liked_and_disliked_items(catalog):
    row = _row("a", seen=["Dune", "Heat", "Nowhere"], disliked_titles=["heat"])
    assert named_items(row, catalog) == ({DUNE_1984, DUNE}, {HEAT})
    assert named_items({**row, "disliked_titles": None}, catalog) == ({DUNE_1984, DUNE, HEAT}, set())
    again = _row("a", seen=["heat"], disliked_titles=["heat"], repeatable_titles=["Dune"])
    assert named_items(again, catalog) == ({DUNE_1984, DUNE}, {HEAT}), "whether or not it may be recommended again"
    named = Named.of([_row("b"), row], catalog)
    assert named.weighted(0.5).toarray().tolist() == [[0] * 5, [-0.5, 1, 1, 0, 0]]
    assert named.weighted(0.0).nnz == 2


@pytest.fixture
def world():
    """Forty people's likes of twelve items, and sixty prompts, which name some of them."""
    rng = np.random.default_rng(3)
    likes = (rng.random((40, 12)) < 0.35).astype(np.float32)
    likes[:, 7] = 0  # an item that nobody likes
    likes[:, 8] = 0
    likes[5, 8] = 1  # an item that one person likes
    liked = rng.random((60, 12)) < 0.3
    liked[5, 8] = True
    disliked = ~liked & (rng.random((60, 12)) < 0.2)
    named = Named(sparse.csr_array(liked.astype(np.float32)), sparse.csr_array(disliked.astype(np.float32)))
    return likes, named


def _knn_scores(likes, liked, disliked, shrinkage, nearest, dislike_weight, exponent):
    """Score one prompt as the definition reads."""
    together = sum(np.outer(own, own) / max(own.sum(), 1) ** exponent for own in likes.astype(float))
    scores = np.zeros(likes.shape[1])
    for weight, items in ((1, liked.nonzero()[0]), (-dislike_weight, disliked.nonzero()[0])):
        for item in items:
            similar = np.zeros(len(scores))
            for other in range(len(scores)):
                norm = np.sqrt(together[item, item] * together[other, other]) + shrinkage
                if other != item and norm > 0:
                    similar[other] = together[item, other] / norm
            limit = np.sort(similar)[-nearest] if nearest else 0
            scores += weight * np.where(similar >= limit, similar, 0)
    return scores


@pytest.mark.parametrize(
    ("shrinkage", "nearest", "dislike_weight", "exponent"),
    [(0, None, 0, 0), (5, 3, 0.5, 0), (0, 4, 1, 1), (5, 3, 0.5, 0.5)],
)
def test_item_knn_is_that_of_a_plain_loop(world, monkeypatch, shrinkage, nearest, dislike_weight, exponent):
    likes, named = world
    expected = [
        _knn_scores(likes, liked, disliked, shrinkage, nearest, dislike_weight, exponent)
        for liked, disliked in zip(named.liked.toarray(), named.disliked.toarray(), strict=True)
    ]
    for cells in (100, 1_000_000):  # several blocks, and one
        monkeypatch.setattr(collaborative, "_CELLS", cells)
        found = ItemKnn(sparse.csr_array(likes), exponent).scores(named, shrinkage, nearest, dislike_weight)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("penalty", [0.5, 2.0, 300.0])
def test_ease_is_the_ridge_regression_of_each_item_on_the_others(world, monkeypatch, penalty):
    likes, named = world
    weights = named.weighted(0.5).toarray()
    expected = np.zeros_like(weights)
    for item in range(likes.shape[1]):
        others = np.delete(np.arange(likes.shape[1]), item)
        gram = likes[:, others].T @ likes[:, others] + penalty * np.eye(len(others))
        expected[:, item] = weights[:, others] @ np.linalg.solve(gram, likes[:, others].T @ likes[:, item])
    for cells in (50, 1_000_000):
        monkeypatch.setattr(collaborative, "_CELLS", cells)
        found = Ease(sparse.csr_array(likes), penalty).scores(named, 0.5)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_ease_of_many_items_keeps_the_most_liked(world):
    likes, named = world
    kept = np.argsort(-likes.sum(axis=0), kind="stable")[:5]
    only = np.zeros_like(likes)
    only[:, kept] = likes[:, kept]
    found = Ease(sparse.csr_array(likes), 1.0, most_items=5).scores(named)
    assert found[:, kept].any() and not np.delete(found, kept, axis=1).any()
    np.testing.assert_allclose(found, Ease(sparse.csr_array(only), 1.0).scores(named), atol=1e-6)
