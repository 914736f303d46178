"""What the catalog constraint allowed and guided at each token of known completions: without a state, all at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from convrec.generation.constraint import mean_log, ranges, sums_of_runs
from convrec.generation.trie import DONE, NUM_ROOTS, CatalogTrie, ListRequest, root_layers


@dataclass(frozen=True, eq=False)
class AllowedTokens:
    """The tokens allowed at T positions of each of B completions, as the places that differ from a base.

    The base of a position is a row of `bases`; `opened`, `closed` and `guided` are pairs of arrays, the position
    (counted row by row) and the column. A column is one of the trie's `tokens`. `bias` is what guidance adds to the
    logits of the guided places.
    """

    tokens: np.ndarray  # (A,), ascending: `CatalogTrie.alphabet`
    bases: np.ndarray  # (layers, A) booleans: the first tokens of roots, then none, then all
    layers: np.ndarray  # (B, T)
    opened: tuple[np.ndarray, np.ndarray]
    closed: tuple[np.ndarray, np.ndarray]
    guided: tuple[np.ndarray, np.ndarray]
    bias: np.ndarray  # (guided,), float32

    def rows(self, rows: slice) -> "AllowedTokens":
        """Return these completions alone."""
        layers, start = self.layers[rows], rows.start * self.layers.shape[1]
        places = [
            slice(*np.searchsorted(positions, [start, start + layers.size]))
            for positions, _ in (self.opened, self.closed, self.guided)
        ]
        opened, closed, guided = (
            (positions[own] - start, columns[own])
            for own, (positions, columns) in zip(places, (self.opened, self.closed, self.guided), strict=True)
        )
        return AllowedTokens(self.tokens, self.bases, layers, opened, closed, guided, self.bias[places[2]])

    @classmethod
    def stack(cls, rows: Sequence["AllowedTokens"], width: int) -> "AllowedTokens":
        """Return these completions as one batch of `width` positions; beyond a row's own, all is allowed."""
        layers = np.full((len(rows), width), len(rows[0].bases) - 1)
        for own, row in zip(layers, rows, strict=True):
            own[: row.layers.shape[1]] = row.layers[0, :width]
        opened, closed, guided = (
            (
                np.concatenate([at + i * width for i, (at, _) in enumerate(pairs)]),
                np.concatenate([to for _, to in pairs]),
            )
            for pairs in zip(*((row.opened, row.closed, row.guided) for row in rows), strict=True)
        )
        bias = np.concatenate([row.bias for row in rows])
        return cls(rows[0].tokens, rows[0].bases, layers, opened, closed, guided, bias)

    def booleans(self, device: torch.device | str = "cpu", vocab: int | None = None) -> torch.Tensor:
        """Return what is allowed as booleans on this device. Shape: (B, T, A), or (B, T, vocab) with a `vocab`."""
        size = self.layers.size
        parts = [self.layers.ravel(), *self.opened, *self.closed]
        one = torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)  # one transfer
        layers, opened_at, opened, closed_at, closed = one.split([len(part) for part in parts])
        allowed = torch.from_numpy(self.bases).to(device, non_blocking=True)[layers]
        allowed[opened_at, opened] = True
        allowed[closed_at, closed] = False
        allowed = allowed.view(*self.layers.shape, -1) if size else allowed
        if vocab is None:
            return allowed
        tokens = torch.from_numpy(self.tokens).to(device, non_blocking=True)
        return allowed.new_zeros(*allowed.shape[:2], vocab).index_copy(2, tokens, allowed)

    def guidance(
        self, device: torch.device | str, vocab: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the flat places of the guided logits and what is added to them, None where nothing is guided.

        The logits are (B, T, A), or (B, T, vocab).
        """
        if not len(self.bias):
            return None
        at, columns = self.guided
        places = at * self.bases.shape[1] + columns if vocab is None else at * vocab + self.tokens[columns]
        both = torch.from_numpy(places), torch.from_numpy(self.bias)
        return both[0].to(device, non_blocking=True), both[1].to(device, non_blocking=True)


def allowed_tokens(
    trie: CatalogTrie, requests: Sequence[ListRequest], completion_ids: np.ndarray, mask: np.ndarray
) -> AllowedTokens:
    """Return what was allowed at each token of the completions (B, T) that these requests led to.

    The mask (B, T) holds the tokens written, EOS included: from the left, without gaps. Where it is false all are
    allowed. Raises `ValueError` naming the first row with a token that was not.

    The items of a list are closed one by one, and what is above them in the trie when the last one below it is closed.
    So an edge of the trie is closed in a row from one time on, and only edges above closed items are.
    """
    nodes, written, lost = _follow(trie, requests, completion_ids, mask)
    width = mask.shape[1]
    of_root, bases = root_layers(trie)
    layers = np.where(mask, of_root[np.minimum(nodes, NUM_ROOTS)], len(bases) - 1)
    below = np.flatnonzero(mask & (layers == len(bases) - 2))
    which, edges = ranges(trie.pointers[nodes.ravel()[below]], trie.pointers[nodes.ravel()[below] + 1])
    opened = below[which], trie.columns[edges]
    closings = _closings(trie, requests, written)
    rows, shut, times = _closed_edges(trie, *closings)
    at, edges = _positions(trie, nodes, mask, rows, shut, times)
    order = np.argsort(at, kind="stable")
    closed = at[order], trie.columns[edges[order]]
    columns = np.minimum(np.searchsorted(trie.alphabet, completion_ids.ravel()), len(trie.alphabet) - 1)
    refused = np.isin(closed[0] * len(trie.alphabet) + closed[1], np.arange(mask.size) * len(trie.alphabet) + columns)
    lost[closed[0][refused] // width] = True
    if lost.any():
        row = int(np.flatnonzero(lost)[0])
        raise ValueError(f"completion {row}: it holds a token that its request does not allow; give the same request")
    guided, bias = _guidance(trie, requests, nodes, mask, closings)
    return AllowedTokens(trie.alphabet, bases, layers, opened, closed, guided, bias)


def _guidance(
    trie: CatalogTrie,
    requests: Sequence[ListRequest],
    nodes: np.ndarray,
    mask: np.ndarray,
    closings: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the guided places, as the position and the column, and what is added to their logits."""
    weighted = [trie.weighted(request) for request in requests]
    owners = np.repeat(np.arange(len(weighted)), [len(items) for items, _ in weighted])
    if not len(owners):
        return (np.empty(0, np.int64), np.empty(0, np.int64)), np.empty(0, np.float32)
    width, num_leaves = mask.shape[1], len(trie.first_edges)
    shut, times = _by_leaf(trie, *closings)
    items, values = (np.concatenate(part) for part in zip(*weighted, strict=True))
    keys, weights = _by_leaf(trie, owners, items, values)
    nearest = np.searchsorted(shut, keys)
    is_shut = np.r_[shut, -1][nearest] == keys
    ends = np.where(is_shut, np.r_[times, width][nearest], width)  # the last time at which a weighted leaf is open
    at = np.flatnonzero(mask & (nodes != DONE))
    offsets, flat = at // width * num_leaves, nodes.ravel()[at]
    which, found = ranges(*np.searchsorted(keys, (trie.node_spans(flat) + offsets[:, None]).T))
    is_open = ends[found] >= at[which] % width
    which, found = which[is_open], found[is_open]
    edges = trie.edges_to(flat[which], keys[found] - offsets[which])
    first, mass, number = sums_of_runs(which, edges, weights[found])
    which, edges = which[first], edges[first]
    num_open = np.ones(len(edges), np.int64)  # where there is one leaf, it is a weighted one
    several = np.flatnonzero(trie.num_below[edges] > 1)
    below = trie.spans[edges[several]] + offsets[which[several]][:, None]
    pairs, gone = ranges(*np.searchsorted(shut, below.T))
    gone_before = pairs[times[gone] < at[which[several[pairs]]] % width]
    num_open[several] = below[:, 1] - below[:, 0] - np.bincount(gone_before, minlength=len(several))
    return (at[which], trie.columns[edges]), mean_log(mass, number, num_open)


def _by_leaf(
    trie: CatalogTrie, rows: np.ndarray, items: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys (row * leaves + leaf) of each row's items, ascending, and their values."""
    keys = (rows[:, None] * len(trie.first_edges) + trie.leaves[items]).ravel()
    order = np.argsort(keys, kind="stable")
    return keys[order], values.repeat(trie.leaves.shape[1])[order]


def _follow(
    trie: CatalogTrie, requests: Sequence[ListRequest], ids: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Return the node before each token (B, T), the written items (row, item, time), and which rows left the trie."""
    remaining = np.array([request.length for request in requests])
    node = trie.roots[0, np.minimum(remaining, 2)]
    nodes, lost = np.full(mask.shape, DONE), np.zeros(len(mask), bool)
    written: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for time, (tokens, is_token) in enumerate(zip(ids.T, mask.T, strict=True)):
        nodes[:, time] = node
        keys = (node << 32) + tokens
        edges = np.minimum(np.searchsorted(trie.keys, keys), len(trie.keys) - 1)
        lost |= is_token & (trie.keys[edges] != keys)
        node = edges + NUM_ROOTS
        ends = np.flatnonzero(is_token & (trie.pointers[node] == trie.pointers[node + 1]))
        items = trie.items[trie.spans[edges[ends], 0]]
        rows = ends[items < trie.num_items]
        written.append((rows, items[items < trie.num_items], np.full(len(rows), time)))
        remaining[rows] -= 1
        node[ends] = DONE
        node[rows] = trie.roots[1, np.minimum(remaining[rows], 2)]
    rows, items, times = (np.concatenate(part) for part in zip(*written, strict=True))
    return nodes, (rows, items, times), lost


def _closings(
    trie: CatalogTrie, requests: Sequence[ListRequest], written: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the items that are closed to a row: the row, the item, and the time, -1 where it was from the start."""
    shut = [trie.closed(request) for request in requests]
    rows = np.concatenate([np.repeat(np.arange(len(shut)), [len(items) for items in shut]), written[0]])
    items = np.concatenate([*shut, written[1]])
    times = np.concatenate([np.full(len(rows) - len(written[2]), -1), written[2]])
    order = np.lexsort((times, items, rows))  # an item is closed once: what is written after that is refused
    rows, items, times = rows[order], items[order], times[order]
    first = np.r_[True, (rows[1:] != rows[:-1]) | (items[1:] != items[:-1])][: len(rows)]
    return rows[first], items[first], times[first]


def _closed_edges(
    trie: CatalogTrie, rows: np.ndarray, items: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges below which no item is open to a row: the row, the edge, and the time of the last closing."""
    leaves = trie.leaves[items]  # (closed items, D)
    rows, times = (values.repeat(leaves.shape[1]) for values in (rows, times))
    edges = trie.last_edges[leaves.ravel()]
    found = [(rows, edges, times)]
    while len(edges):
        parents = trie.keys[edges] >> 32
        inner = parents >= NUM_ROOTS
        rows, edges, times = rows[inner], parents[inner] - NUM_ROOTS, times[inner]
        found.append((rows, edges, times))
    rows, edges, times = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.lexsort((times, edges, rows))
    rows, edges, times = rows[order], edges[order], times[order]
    ends = np.flatnonzero(np.r_[(rows[1:] != rows[:-1]) | (edges[1:] != edges[:-1]), True][: len(rows)])
    counts = np.diff(ends, prepend=-1)
    whole = ends[counts == trie.num_below[edges[ends]]]
    return rows[whole], edges[whole], times[whole]


def _positions(
    trie: CatalogTrie, nodes: np.ndarray, mask: np.ndarray, rows: np.ndarray, edges: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions at which a row's closed edge would lead on, and the edge."""
    num_nodes, width = len(trie.pointers), mask.shape[1]
    keys = (np.arange(len(mask))[:, None] * num_nodes + nodes).ravel()
    keys[~mask.ravel()] = -1
    order = np.argsort(keys, kind="stable")
    wanted = rows * num_nodes + (trie.keys[edges] >> 32)
    sorted_keys = keys[order]
    which, places = ranges(np.searchsorted(sorted_keys, wanted), np.searchsorted(sorted_keys, wanted, side="right"))
    at = order[places]
    later = at % width > times[which]
    return at[later], edges[which][later]
