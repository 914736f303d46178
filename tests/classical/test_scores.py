import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from convrec.classical.scores import (
    BLOCK,
    Mixture,
    Scores,
    WeightedSum,
    best_columns,
    row_blocks,
    sparse_scores,
    top_items,
)


def _both(rows, items):
    """Scores of dense and of sparse vectors, and the same as one matrix."""
    rng = np.random.default_rng(0)
    queries = rng.integers(-2, 3, (rows, 5)).astype(np.float32)
    vectors = rng.integers(-2, 3, (items, 5)).astype(np.float32)
    bonus = sparse.random_array((rows, items), density=0.1, rng=rng, format="csr", dtype=np.float32)
    weights = sparse.random_array((rows, 3), density=0.5, rng=rng, format="csr", dtype=np.float32)
    mixed = rng.integers(-2, 3, (3, 5)).astype(np.float32)
    whole = (queries + weights.toarray() @ mixed) @ vectors.T + bonus.toarray()
    dense = Scores(queries, vectors, bonus, Mixture(weights, mixed))
    queries, vectors, mixed = (sparse.csr_array(part) for part in (queries, vectors, mixed))
    return [dense, Scores(queries, vectors, bonus, Mixture(weights, mixed))], whole


@pytest.mark.parametrize("rows", [1, 7, BLOCK + 3])
def test_blocks_are_the_rows_of_the_whole_matrix(rows):
    found, whole = _both(rows, 11)
    for scores in found:
        assert scores.shape == whole.shape
        for where, block in scores.blocks():
            np.testing.assert_allclose(block.numpy(), whole[where], rtol=1e-5, atol=1e-5)
        order = np.random.default_rng(1).permutation(rows)
        np.testing.assert_allclose(scores.block(order).numpy(), whole[order], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(scores.block(slice(0, 1)).numpy(), whole[:1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("items", "most"), [(480, BLOCK), (7404, BLOCK), (100_000, 40), (10_000_000, 1)])
def test_a_block_holds_fewer_rows_of_a_large_catalog(items, most):
    places = [np.arange(1000)[rows] for rows in row_blocks(1000, items)]
    assert max(map(len, places)) == most and np.concatenate(places).tolist() == list(range(1000))


def test_a_further_bonus_adds_up():
    (scores, _), whole = _both(4, 6)
    more = sparse.csr_array(np.eye(4, 6, dtype=np.float32))
    np.testing.assert_allclose(scores.plus(more).block(slice(0, 4)).numpy(), whole + np.eye(4, 6), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(scores.block(slice(0, 4)).numpy(), whole, rtol=1e-5, atol=1e-5)


def test_a_weighted_sum_is_that_of_the_matrices():
    found, whole = _both(5, 6)
    more = sparse.csr_array(np.eye(5, 6, dtype=np.float32))
    for weights in ((2.0, 0.5), (0.0, 3.0), (0.0, 0.0)):
        for scores in found:
            total = WeightedSum([scores, sparse_scores(more)], weights)
            expected = weights[0] * whole + weights[1] * more.toarray()
            assert total.shape == (5, 6)
            np.testing.assert_allclose(total.block([3, 1]).numpy(), expected[[3, 1]], rtol=1e-5, atol=1e-5)


@given(st.integers(1, 12), st.integers(0, 1_000), st.booleans(), st.sampled_from([10, 61]))
@settings(max_examples=100)
def test_the_top_is_that_of_a_stable_sort_without_what_is_excluded(size, seed, adjusted, number):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, rng.choice([4, 40]), (6, number)).astype(np.float32)  # many ties
    scores = Scores(np.zeros((6, 1), np.float32), np.zeros((number, 1), np.float32), sparse.csr_array(values))
    excluded = [rng.choice(number, rng.integers(0, number), replace=False).tolist() for _ in range(6)]
    weight, bias = rng.integers(1, 3, number).astype(np.float32), rng.integers(-1, 2, number).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("convrec.classical.scores._GROUP", 2)  # so that 61 items are many
        patch.setattr("convrec.classical.scores._FIRST", 5)
        top, best = top_items(scores, size, excluded, *((weight, bias) if adjusted else ()))
        order = rng.permutation(number)
        ordered = best_columns(torch.from_numpy(values), min(size, number), torch.from_numpy(order)).tolist()
    assert ordered == [order[np.argsort(-own[order], kind="stable")][:size].tolist() for own in values]
    whole = values * weight + bias if adjusted else values
    for row in range(6):
        allowed = [i for i in np.argsort(-whole[row], kind="stable").tolist() if i not in excluded[row]][:size]
        filled = [i for i in top[row].tolist() if i >= 0]
        assert filled == allowed
        assert best[row][: len(allowed)].tolist() == whole[row][allowed].tolist()
        assert np.isneginf(best[row][len(allowed) :]).all()
