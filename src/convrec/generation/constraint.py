"""Constrained decoding, which only writes lists of catalog items: a batch's state in the trie of the catalog.

A list can be guided. Let p be the model's probability of each next token among those that are allowed, and w the weight
of each item, then the guided probability of a token is proportional to p times the mean weight of the open items below
its edge. Where each item is one token, that is p(item) w(item). Equal weights change nothing.

The trie's first level is kept as a dense mask, as in STATIC (arXiv 2602.22647). A step of decoding is a few array
operations for the whole batch. They run on the CPU for a model on a GPU, too, which gets only the indices of the scores
that change; jump-forward decoding on a GPU has `device_state.DeviceState` instead.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from convrec.generation.trie import DONE, NUM_ROOTS, TOKEN, CatalogTrie, ListRequest, root_layers
from convrec.project.errors import InputError

Rows = Sequence[int] | np.ndarray


class _Allowance(NamedTuple):
    """The next tokens that B rows may take: those of their layers (`_root_biases`), with `opened` and without `closed`.

    `opened`, `closed` and `guided` are pairs of arrays: the index of the row, and the token. `bias` is what guidance
    adds to the scores of the `guided` tokens, the logarithm of the mean weight below them.
    """

    layers: np.ndarray  # (B,)
    opened: tuple[np.ndarray, np.ndarray]
    closed: tuple[np.ndarray, np.ndarray]
    guided: tuple[np.ndarray, np.ndarray]
    bias: np.ndarray  # (guided,), float32


class ConstraintState:
    """The position of each of B lists in the trie, and its allowed items.

    A row holds the leaves of the items that set it apart: those closed to it, or those open to it, whichever are
    fewer, and those that it has written. Of all rows they are one sorted array, so that the leaves among those below
    an edge are counted by two look-ups. Rows can be given other lists (`put`), and every method takes the rows that it
    is about, by default all.
    """

    def __init__(
        self, trie: CatalogTrie, requests: Sequence[ListRequest], vocab_size: int, capacity: int | None = None
    ):
        """Begin these lists for scores of `vocab_size` tokens, in the first of `capacity` rows (by default as many).

        Raises `InputError` for lists that cannot be written.
        """
        if vocab_size < trie.vocab_size:
            raise InputError(f"vocabulary of {vocab_size} tokens: the catalog needs {trie.vocab_size}; take its model")
        size = capacity or len(requests)
        self._trie = trie
        self._num_leaves = len(trie.first_edges)
        self._rows = np.arange(size)
        self._nodes = np.full(size, DONE)
        self._remaining = np.zeros(size, np.int64)
        self._is_open = np.zeros(size, np.int64)  # 1 for rows to which all is open at first
        self._keys = np.empty(0, np.int64)  # row * leaves + leaf, ascending
        self._signs = np.empty(0, np.int64)  # 1 where the leaf is opened, -1 where closed
        self._sums = np.zeros(1, np.int64)  # of the signs before a key
        self._weighted = np.empty(0, np.int64)  # row * leaves + leaf of the open items that have a weight, ascending
        self._weights = np.empty(0)  # of these items; 0 for those that the row has written since
        self._logs = np.empty(0, np.float32)
        # 0 for the first tokens of a root, else -inf: to add is far quicker than to choose by booleans. The last row is
        # that of lists which stand below a root, and of those to which nothing is open at first.
        self._layers, self._bias = _root_biases(trie, vocab_size)
        self._below = len(self._bias) - 1
        self.lost = np.zeros(size, bool)  # rows that received a forbidden token
        self._is_first = np.ones(size, bool)  # rows of which no token is written
        self._first_scores = torch.empty(0)  # (size, vocab_size), of lists that are read in one pass
        self.put(self._rows[: len(requests)], requests)

    @property
    def is_one_pass(self) -> bool:
        """Whether lists are read in one pass, see `mask_`."""
        return self._trie.is_one_pass

    def put(self, rows: Rows, requests: Sequence[ListRequest]) -> None:
        """Begin these lists in these rows."""
        rows = np.asarray(rows, np.int64)
        listed = [self._trie.listed(request) for request in requests]
        length = np.array([request.length for request in requests], np.int64)
        opened = np.array([is_open for _, is_open in listed], np.int64)
        kept = ~np.isin(self._keys // self._num_leaves, rows)
        self._keys, self._signs = self._keys[kept], self._signs[kept]
        sizes = [len(items) for items, _ in listed]
        items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in listed)])
        self._add(np.repeat(rows, sizes), items, np.repeat(2 * opened - 1, sizes))
        self._is_open[rows] = 1 - opened
        self._put_weights(rows, requests)
        self._remaining[rows] = length
        self._nodes[rows] = self._trie.roots[0, np.minimum(length, 2)]
        self.lost[rows] = False
        self._is_first[rows] = True

    def _put_weights(self, rows: np.ndarray, requests: Sequence[ListRequest]) -> None:
        """Replace the weights of these rows by those of the requests' open items."""
        kept = ~np.isin(self._weighted // self._num_leaves, rows) & (self._weights > 0)
        given = [self._trie.weighted(request) for request in requests]
        owners = np.repeat(rows, [len(items) for items, _ in given])
        items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in given)])
        values = np.concatenate([np.empty(0), *(values for _, values in given)])
        leaves = self._trie.leaves[items]  # (items, D)
        keys = (owners[:, None] * self._num_leaves + leaves).ravel()
        first, end = (self._sums[np.searchsorted(self._keys, keys, side)] for side in ("left", "right"))
        is_open = end - first + self._is_open[owners].repeat(leaves.shape[1]) > 0
        keys = np.concatenate([self._weighted[kept], keys[is_open]])
        order = np.argsort(keys, kind="stable")
        weights = np.concatenate([self._weights[kept], values.repeat(leaves.shape[1])[is_open]])[order]
        self._weighted, self._weights, self._logs = keys[order], weights, np.log(weights).astype(np.float32)

    def mask_(self, scores: torch.Tensor, rows: Rows | None = None) -> torch.Tensor:
        """Set the scores (B, vocab_size) of forbidden next tokens to -inf and guide the others, in place; return them.

        The scores are contiguous. Where each item is one token, those of a list's first token stand for those of all
        its tokens: a list is then the best items of one distribution, or drawn from it without replacement
        (Plackett-Luce).
        """
        if self._trie.is_one_pass:
            self._read_once(scores, self._rows if rows is None else np.asarray(rows, np.int64))
        layers, opened, closed, guided, bias = self.allowance(rows)
        self._bias = self._bias.to(scores.device)
        places = guided[0] * scores.shape[1] + guided[1]
        below, at_root = np.flatnonzero(layers == self._below), np.flatnonzero(layers < self._below)
        parts = *opened, *closed, places, below, at_root, layers[at_root]
        index = torch.from_numpy(np.concatenate(parts)).to(scores.device)  # one transfer
        *pairs, at, inner, roots, of_root = index.split([len(part) for part in parts])
        opened_at, opened_tokens, closed_at, closed_tokens = pairs
        kept = scores[opened_at, opened_tokens]
        if self._below == 1 and len(roots):
            scores.add_(self._bias[0])  # also to the rows below: a pass in place is cheaper than to gather the others
        elif len(roots):
            scores[roots] += self._bias[of_root]
        scores.index_fill_(0, inner, -torch.inf)
        scores[opened_at, opened_tokens] = kept
        if len(closed[0]):
            scores[closed_at, closed_tokens] = -torch.inf
        if len(bias):
            added = torch.from_numpy(bias).to(scores.device, scores.dtype)
            scores.view(-1).index_add_(0, at, added)
        return scores

    def _read_once(self, scores: torch.Tensor, rows: np.ndarray) -> None:
        """Keep the scores of rows that begin, and replace those of the others by the ones that were kept."""
        if self._first_scores.shape != (len(self._rows), scores.shape[1]):
            self._first_scores = scores.new_empty(len(self._rows), scores.shape[1])
        is_first = self._is_first[rows]
        self._first_scores[rows[is_first]] = scores[is_first]
        scores[~is_first] = self._first_scores[rows[~is_first]]

    def allowance(self, rows: Rows | None = None) -> _Allowance:
        """Return which next tokens are allowed, and the guidance of those."""
        rows = self._rows if rows is None else np.asarray(rows, np.int64)
        nodes = self._nodes[rows]
        layers = self._layers[np.minimum(nodes, NUM_ROOTS)]
        at_root = layers < self._below
        at, edges = self._edges_from(nodes, at_root)
        of_leaves, first_edges = self._listed_below(rows, nodes, at_root)
        at, edges = np.concatenate([at, of_leaves]), np.concatenate([edges, first_edges])
        tokens = self._trie.keys[edges] & TOKEN
        is_open = self._num_open(rows[at], edges) > 0
        layers = np.where(self._is_open[rows] == 1, layers, self._below)
        opens, closes = is_open & (layers[at] == self._below), ~is_open & (layers[at] < self._below)
        guided, bias = self._guidance(rows, nodes)
        return _Allowance(layers, (at[opens], tokens[opens]), (at[closes], tokens[closes]), guided, bias)

    def _guidance(self, rows: np.ndarray, nodes: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Return the guided tokens, as the index of the row and the token, and what is added to their scores."""
        if not len(self._weighted):
            return (np.empty(0, np.int64), np.empty(0, np.int64)), np.empty(0, np.float32)
        offsets = rows * self._num_leaves
        which, places = ranges(*np.searchsorted(self._weighted, self._trie.node_spans(nodes).T + offsets))
        edges = self._trie.edges_to(nodes[which], self._weighted[places] - offsets[which])
        bias = self._logs[places]
        is_several = self._trie.num_below[edges] > 1  # where there is one leaf, it is a weighted one, or closed
        if is_several.any():
            open_ones = np.flatnonzero(is_several & (self._weights[places] > 0))
            first, mass, number = sums_of_runs(which[open_ones], edges[open_ones], self._weights[places[open_ones]])
            at, to = which[open_ones[first]], edges[open_ones[first]]
            several = at, to, mean_log(mass, number, self._num_open(rows[at], to))
            parts = zip((which, edges, bias), several, strict=True)
            which, edges, bias = (np.concatenate([own[~is_several], more]) for own, more in parts)
        return (which, self._trie.keys[edges] & TOKEN), bias

    def _edges_from(self, nodes: np.ndarray, at_root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return every edge that leads on from nodes below the roots: the index of the node, and the edge."""
        below = np.flatnonzero(~at_root)
        which, edges = ranges(self._trie.pointers[nodes[below]], self._trie.pointers[nodes[below] + 1])
        return below[which], edges

    def _listed_below(self, rows: np.ndarray, nodes: np.ndarray, at_root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first edge to each leaf that a row at a root holds: the index of the node, and the edge."""
        roots = np.flatnonzero(at_root)
        offsets = rows[roots] * self._num_leaves
        which, places = ranges(*np.searchsorted(self._keys, self._trie.root_spans[nodes[roots]].T + offsets))
        return roots[which], self._trie.first_edges[self._keys[places] - offsets[which]]

    def _num_open(self, rows: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Return how many items below each edge are open to its row; 1 for an edge of DONE, which always leads on."""
        spans = self._trie.spans[edges]
        sums = self._sums[np.searchsorted(self._keys, spans + (rows * self._num_leaves)[:, None])]
        left = sums + spans * self._is_open[rows][:, None]
        number: np.ndarray = np.where(spans[:, 0] == self._num_leaves, 1, left[:, 1] - left[:, 0])
        return number

    def advance(self, tokens: Rows, rows: Rows | None = None) -> None:
        """Move each row on by its token (B,); a token that was not allowed ends the list and marks the row as lost."""
        rows = self._rows if rows is None else np.asarray(rows, np.int64)
        trie = self._trie
        keys = (self._nodes[rows] << 32) + np.asarray(tokens, np.int64)
        edges = np.minimum(np.searchsorted(trie.keys, keys), len(trie.keys) - 1)
        lost = (trie.keys[edges] != keys) | (self._num_open(rows, edges) < 1)
        nodes = edges + NUM_ROOTS
        ends = trie.pointers[nodes] == trie.pointers[nodes + 1]
        items = trie.items[trie.spans[edges, 0]]
        written = np.flatnonzero(ends & ~lost & (items < trie.num_items))
        if len(written):
            of_items = rows[written]
            self._remaining[of_items] -= 1
            self._add(of_items, items[written], np.full(len(written), -1))
            self._drop_weights(of_items, items[written])
            nodes[written] = trie.roots[1, np.minimum(self._remaining[of_items], 2)]
            ends[written] = False
        nodes[lost | ends] = DONE
        self._nodes[rows] = nodes
        self._is_first[rows] = False
        self.lost[rows] |= lost

    @property
    def is_done(self) -> bool:
        """Whether all lists have ended."""
        return bool((self._nodes == DONE).all())

    def jump(self, tokens: Sequence[int]) -> list[list[int]]:
        """Move each row on by its token (B,) and by all that alone can follow; return these. Ended rows stay.

        Raises `ValueError` for a token that is not allowed.
        """
        written: list[list[int]] = [[] for _ in tokens]
        rows = np.flatnonzero(self._nodes != DONE)
        new = np.asarray(tokens, np.int64)[rows]
        while len(rows):
            self.advance(new, rows)
            for row, token in zip(rows.tolist(), new.tolist(), strict=True):
                written[row].append(token)
            new = self._trie.forced[self._nodes[rows]]
            rows, new = rows[new >= 0], new[new >= 0]
        if self.lost.any():
            raise ValueError(f"row {self.lost.tolist().index(True)} was given a token that is not allowed")
        return written

    def _add(self, rows: np.ndarray, items: np.ndarray, signs: np.ndarray) -> None:
        """Open (sign 1) or close (-1) each item to its row."""
        leaves = self._trie.leaves[items]  # (items, D)
        keys = (rows[:, None] * self._num_leaves + leaves).ravel()
        order = np.argsort(keys, kind="stable")
        places = np.searchsorted(self._keys, keys[order])
        self._keys = np.insert(self._keys, places, keys[order])
        self._signs = np.insert(self._signs, places, signs.repeat(leaves.shape[1])[order])
        self._sums = np.concatenate([np.zeros(1, np.int64), self._signs.cumsum()])

    def _drop_weights(self, rows: np.ndarray, items: np.ndarray) -> None:
        """Forget the weight of an item that a row has written."""
        if len(self._weighted):
            keys = (rows[:, None] * self._num_leaves + self._trie.leaves[items]).ravel()
            places = np.minimum(np.searchsorted(self._weighted, keys), len(self._weighted) - 1)
            self._weights[places[self._weighted[places] == keys]] = 0


def _root_biases(trie: CatalogTrie, vocab_size: int) -> tuple[np.ndarray, torch.Tensor]:
    """Return `root_layers` without the last, as what is added to scores: 0 or -inf. Shape: (6,), (layers, vocab)."""
    of_root, layers = root_layers(trie)
    biases = torch.full((len(layers) - 1, vocab_size), -torch.inf)
    for bias, tokens in zip(biases, layers, strict=False):
        bias[torch.from_numpy(trie.alphabet[tokens])] = 0.0
    return of_root, biases


def ranges(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of all ranges, one range after another, and before them which range each is of."""
    sizes = ends - starts
    numbers = np.repeat(starts + sizes - sizes.cumsum(), sizes)
    return np.repeat(np.arange(len(sizes)), sizes), numbers + np.arange(len(numbers))


def sums_of_runs(
    which: np.ndarray, edges: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each run of equal pairs begins, the sum of its weights, and its length; `which` is ascending."""
    first = np.flatnonzero(np.r_[True, (which[1:] != which[:-1]) | (edges[1:] != edges[:-1])][: len(which)])
    sums = np.add.reduceat(weights, first) if len(first) else np.empty(0)
    return first, sums, np.diff(first, append=len(which))


def mean_log(mass: np.ndarray, number: np.ndarray, num_open: np.ndarray) -> np.ndarray:
    """Return the logarithm of the mean weight of open items: `mass` is the sum of `number` of them, others have 1."""
    means: np.ndarray = np.log((mass + (num_open - number)) / num_open)
    return means.astype(np.float32)
