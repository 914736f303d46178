"""What the catalog constraint allowed at each token of completions that are known: without a state, all at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from convrec.generation.constraint import DONE, CatalogTrie, ListRequest, ranges, root_layers

_NUM_ROOTS = DONE + 1


@dataclass(frozen=True, eq=False)
class AllowedTokens:
    """The tokens allowed at T positions of each of B completions, as the places that differ from a base.

    The base of a position is a row of `bases`; `opened` and `closed` are pairs of arrays, the position (counted row by
    row) and the column. Columns are the trie's tokens, ascending (`CatalogTrie.alphabet`).
    """

    bases: np.ndarray  # (layers, A) booleans: the first tokens of roots, then none, then all
    layers: np.ndarray  # (B, T)
    opened: tuple[np.ndarray, np.ndarray]
    closed: tuple[np.ndarray, np.ndarray]

    def rows(self, rows: slice) -> "AllowedTokens":
        """Return these completions alone."""
        layers, start = self.layers[rows], rows.start * self.layers.shape[1]
        opened, closed = (
            (positions[slice(*at)] - start, columns[slice(*at)])
            for positions, columns in (self.opened, self.closed)
            for at in (np.searchsorted(positions, [start, start + layers.size]),)
        )
        return AllowedTokens(self.bases, layers, opened, closed)

    @classmethod
    def stack(cls, rows: Sequence["AllowedTokens"], width: int) -> "AllowedTokens":
        """Return these completions as one batch of `width` positions; beyond a row's own, all is allowed."""
        layers = np.full((len(rows), width), len(rows[0].bases) - 1)
        for own, row in zip(layers, rows, strict=True):
            own[: row.layers.shape[1]] = row.layers[0, :width]
        opened, closed = (
            tuple(np.concatenate(part) for part in zip(*((at + i * width, to) for i, (at, to) in pairs), strict=True))
            for pairs in (list(enumerate(row.opened for row in rows)), list(enumerate(row.closed for row in rows)))
        )
        return cls(rows[0].bases, layers, opened, closed)  # type: ignore[arg-type]

    def booleans(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return what is allowed as booleans on this device. Shape: (B, T, A)."""
        size = self.layers.size
        parts = [self.layers.ravel(), *self.opened, *self.closed]
        one = torch.from_numpy(np.concatenate(parts)).to(device, non_blocking=True)  # one transfer
        layers, opened_at, opened, closed_at, closed = one.split([len(part) for part in parts])
        allowed = torch.from_numpy(self.bases).to(device)[layers]
        allowed[opened_at, opened] = True
        allowed[closed_at, closed] = False
        return allowed.view(*self.layers.shape, -1) if size else allowed


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
    layers = np.where(mask, of_root[np.minimum(nodes, _NUM_ROOTS)], len(bases) - 1)
    below = np.flatnonzero(mask & (layers == len(bases) - 2))
    which, edges = ranges(trie.pointers[nodes.ravel()[below]], trie.pointers[nodes.ravel()[below] + 1])
    opened = below[which], trie.columns[edges]
    rows, shut, times = _closed_edges(trie, requests, written)
    at, edges = _positions(trie, nodes, mask, rows, shut, times)
    order = np.argsort(at, kind="stable")
    closed = at[order], trie.columns[edges[order]]
    columns = np.minimum(np.searchsorted(trie.alphabet, completion_ids.ravel()), len(trie.alphabet) - 1)
    refused = np.isin(closed[0] * len(trie.alphabet) + closed[1], np.arange(mask.size) * len(trie.alphabet) + columns)
    lost[closed[0][refused] // width] = True
    if lost.any():
        row = int(np.flatnonzero(lost)[0])
        raise ValueError(f"completion {row}: it holds a token that its request does not allow; give the same request")
    return AllowedTokens(bases, layers, opened, closed)


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
        node = edges + _NUM_ROOTS
        ends = np.flatnonzero(is_token & (trie.pointers[node] == trie.pointers[node + 1]))
        items = trie.items[trie.spans[edges[ends], 0]]
        rows = ends[items < trie.num_items]
        written.append((rows, items[items < trie.num_items], np.full(len(rows), time)))
        remaining[rows] -= 1
        node[ends] = DONE
        node[rows] = trie.roots[1, np.minimum(remaining[rows], 2)]
    rows, items, times = (np.concatenate(part) for part in zip(*written, strict=True))
    return nodes, (rows, items, times), lost


def _closed_edges(
    trie: CatalogTrie, requests: Sequence[ListRequest], written: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges below which no item is open to a row: the row, the edge, and the time of the last closing."""
    shut = [trie.closed(request) for request in requests]
    rows = np.concatenate([np.repeat(np.arange(len(shut)), [len(items) for items in shut]), written[0]])
    items = np.concatenate([*shut, written[1]])
    times = np.concatenate([np.full(len(rows) - len(written[2]), -1), written[2]])
    order = np.lexsort((times, items, rows))  # an item is closed once: what is written after that is refused
    rows, items, times = rows[order], items[order], times[order]
    first = np.r_[True, (rows[1:] != rows[:-1]) | (items[1:] != items[:-1])][: len(rows)]
    rows, items, times = rows[first], items[first], times[first]
    leaves = trie.leaves[items]  # (closed items, D)
    rows, times = (values.repeat(leaves.shape[1]) for values in (rows, times))
    edges = trie.last_edges[leaves.ravel()]
    found = [(rows, edges, times)]
    while len(edges):
        parents = trie.keys[edges] >> 32
        inner = parents >= _NUM_ROOTS
        rows, edges, times = rows[inner], parents[inner] - _NUM_ROOTS, times[inner]
        found.append((rows, edges, times))
    rows, edges, times = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.lexsort((times, edges, rows))
    rows, edges, times = rows[order], edges[order], times[order]
    ends = np.flatnonzero(np.r_[(rows[1:] != rows[:-1]) | (edges[1:] != edges[:-1]), True][: len(rows)])
    counts = np.diff(ends, prepend=-1)
    whole = ends[counts == np.diff(trie.spans[edges[ends]], axis=1)[:, 0]]
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
