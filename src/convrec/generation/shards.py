"""Shards: the share of each worker when several generate the lists of the same prompts."""

from collections.abc import Sequence
from typing import NamedTuple


def longest_first(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return the indices of prompts in the order in which they are generated."""
    return sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))


class Shard(NamedTuple):
    """Every `total`-th batch of `batch_size` lists, from batch `number` (1 to `total`) on.

    A list depends on its batch by rounding. Shards consist of the batches that one worker generates, so all shards
    together give the lists of one worker.
    """

    number: int
    total: int
    batch_size: int

    def of(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Return the indices of the shard's prompts, given the tokens of all distinct prompts; longest first."""
        order = longest_first(prompts)
        return [i for place, i in enumerate(order) if place // self.batch_size % self.total == self.number - 1]
