"""The arrays of a trie over token sequences, made level by level: a sort of all sequences' next tokens is a level."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from convrec.generation.line_tokens import LineTokens, Tokens


class Sequences(NamedTuple):
    """Token sequences as one array."""

    tokens: np.ndarray  # int32, those of all sequences
    lengths: np.ndarray  # (S,) int64

    @classmethod
    def of(cls, sequences: Sequence[Tokens]) -> "Sequences":
        """Return these sequences."""
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        return cls(np.fromiter(chain.from_iterable(sequences), np.int32, int(lengths.sum())), lengths)

    @classmethod
    def concatenate(cls, parts: Iterable["Sequences"]) -> "Sequences":
        """Return the sequences of all parts."""
        tokens, lengths = zip(*parts, strict=True)
        return cls(np.concatenate(tokens), np.concatenate(lengths))

    def ended(self, token: int) -> "Sequences":
        """Return the sequences with one more token at their ends."""
        return Sequences(np.insert(self.tokens, np.cumsum(self.lengths), token), self.lengths + 1)

    def equals(self, other: "Sequences") -> bool:
        """Tell whether both are the same sequences in the same order."""
        return np.array_equal(self.lengths, other.lengths) and np.array_equal(self.tokens, other.tokens)


def collect(batches: Iterable[Sequence[LineTokens]]) -> list[Sequences]:
    """Return the sequences of each place of `LineTokens`."""
    parts = [[Sequences.of(place) for place in zip(*batch, strict=True)] for batch in batches]
    return [Sequences.concatenate(place) for place in zip(*parts, strict=True)]


class Edges(NamedTuple):
    """The E edges of a trie below `num_roots` roots, ascending by parent and token; edge e leads to node e + num_roots.

    Leaves are numbered depth first, so that those below an edge are neighbours: `low` to `high`.
    """

    keys: np.ndarray  # (E,) int64, parent * 2**32 + token
    low: np.ndarray  # (E,)
    high: np.ndarray  # (E,)
    first: np.ndarray  # (S,) the edge of a sequence's first token
    leaf: np.ndarray  # (S,) the number of its leaf

    @classmethod
    def of(cls, sequences: Sequences, roots: np.ndarray, num_roots: int) -> "Edges":
        """Return the edges of S sequences, each below its root; none is the beginning of another of the same root."""
        starts = np.cumsum(sequences.lengths) - sequences.lengths
        nodes, active = roots.astype(np.int64), np.arange(len(roots))
        first = nodes
        keys: list[np.ndarray] = []
        counts: list[np.ndarray] = []  # how many sequences, and so leaves, are below each edge
        num_nodes = num_roots
        while len(active):
            level = len(keys)
            found, edges, number = np.unique(
                (nodes[active] << 32) + sequences.tokens[starts[active] + level],
                return_inverse=True,
                return_counts=True,
            )
            nodes[active] = num_nodes + edges
            if not level:
                first = nodes - num_roots
            keys.append(found)
            counts.append(number)
            num_nodes += len(found)
            active = active[sequences.lengths[active] > level + 1]
        low = np.zeros(num_nodes, np.int64)  # of a node; that of a root is where the leaves of the roots before it end
        low[:num_roots] = np.cumsum(np.bincount(roots, minlength=num_roots)) - np.bincount(roots, minlength=num_roots)
        at = num_roots
        for found, number in zip(keys, counts, strict=True):
            parents, before = found >> 32, np.cumsum(number) - number
            begins = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
            of_parent = np.repeat(before[begins], np.diff(np.r_[begins, len(parents)]))
            low[at : at + len(found)] = low[parents] + before - of_parent
            at += len(found)
        edge_low = low[num_roots:]
        return cls(np.concatenate(keys), edge_low, edge_low + np.concatenate(counts), first, low[nodes])
