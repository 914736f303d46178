from hypothesis import given
from hypothesis import strategies as st

from convrec.generation.shards import Shard

LENGTHS = st.lists(st.integers(1, 6), max_size=40)


def _batches(indices: list[int], size: int) -> list[list[int]]:
    return [indices[first : first + size] for first in range(0, len(indices), size)]


@given(LENGTHS, st.integers(1, 5), st.integers(1, 4))
def test_the_batches_of_all_shards_are_those_of_one_worker(lengths, size, workers):
    prompts = [[0] * length for length in lengths]
    order = Shard(1, 1, size).of(prompts)
    assert sorted(order) == list(range(len(prompts)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    batches = [_batches(Shard(number, workers, size).of(prompts), size) for number in range(1, workers + 1)]
    assert sorted(batch for shard in batches for batch in shard) == sorted(_batches(order, size))
    assert max(map(len, batches)) - min(map(len, batches)) <= 1, "the shares are even"
