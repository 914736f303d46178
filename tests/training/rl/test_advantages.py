import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from convrec.training.rl.advantages import rank_advantages


def _loop(returns: list[list[float]], size: int) -> list[list[float]]:
    out = [[0.0] * len(returns[0]) for _ in returns]
    for start in range(0, len(returns), size):
        for rank in range(len(returns[0])):
            group = [returns[start + i][rank] for i in range(size)]
            mean, spread = statistics.fmean(group), statistics.stdev(group)
            for i in range(size):
                out[start + i][rank] = 0.0 if len(set(group)) == 1 else (group[i] - mean) / (spread + 1e-4)
    return out


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 4), st.data())
def test_group_normalization_equals_a_loop(size, groups, ranks, data):
    value = st.integers(-3, 3).map(float)
    row = st.lists(value, min_size=ranks, max_size=ranks)
    returns = data.draw(st.lists(row, min_size=size * groups, max_size=size * groups))
    found = rank_advantages(torch.tensor(returns, dtype=torch.float64), size)
    torch.testing.assert_close(found, torch.tensor(_loop(returns, size), dtype=torch.float64))


def test_groups_without_spread_are_zero_and_never_nan():
    assert rank_advantages(torch.full((4, 3), 0.1), 4).tolist() == [[0.0] * 3] * 4
    assert rank_advantages(torch.rand(3, 2), 1).tolist() == [[0.0] * 2] * 3


def test_incomplete_group_is_refused():
    with pytest.raises(ValueError, match="num_generations"):
        rank_advantages(torch.zeros(5, 2), 2)
