"""Constrained decoding, which only writes lists of catalog items: a trie over token ids, and a batch's state in it.

A list can be guided. Let p be the model's probability of each next token among those that are allowed, and w the weight
of each item, then the guided probability of a token is proportional to p times the mean weight of the open items below
its edge. Where each item is one token, that is p(item) w(item). Equal weights change nothing.

The trie is flattened to CSR arrays and its first level is kept as a dense mask, as in STATIC (arXiv 2602.22647). A step
of decoding is a few array operations for the whole batch. They run on the CPU for a model on a GPU, too: they are many
and small, and the GPU gets only the indices of the scores that change.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from convrec.data.catalog import Catalog
from convrec.generation.line_tokens import generation_prompt, tokenize_batches
from convrec.generation.trie_build import Edges, Sequences, collect
from convrec.project.errors import InputError

Rows = Sequence[int] | np.ndarray
# Returns the logarithms of the weights that guide the list of each row of the data; see `classical.guidance`.
Guide = Callable[[Sequence[Any]], Sequence[Mapping[int, float]]]
NO_GUIDANCE: Mapping[int, float] = MappingProxyType({})

# The roots, which are the first nodes: the next token begins a line. The root depends on whether it is the
# first line, and on whether another line follows. At DONE the list has ended.
FIRST_OF_MORE, FIRST_AND_LAST, LATER_OF_MORE, LATER_AND_LAST, DONE = range(5)
_NUM_ROOTS = 5
_START = (DONE, FIRST_AND_LAST, FIRST_OF_MORE)  # the root of a list by the lines that remain, 2 for any more
_NEXT = (DONE, LATER_AND_LAST, LATER_OF_MORE)

_TOKEN = 2**32 - 1  # of a key: the token
LARGEST_LOG = 100  # of an item's weight


@dataclass(frozen=True)
class ListRequest:
    """One list: how many items, and which (catalog indices) it may hold: those `allowed` (None: all), none `banned`.

    `log_weights` guide the list: the natural logarithm of an item's weight, 0 for those without one.
    """

    length: int
    banned: Collection[int] = ()
    allowed: Collection[int] | None = None
    log_weights: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class CatalogTrie:
    """The token sequences of C catalog lines as a trie of N nodes and E edges, in CSR form.

    The edges of node x are `pointers[x]` to `pointers[x + 1]`, their tokens ascending; edge e leads to node
    e + 5 (the roots have no edge to them). A sequence ends with its newline or with EOS, so that none is the
    beginning of another and every leaf is one item. The P leaves are numbered depth first, so that those below an edge
    are neighbours, its span. The edges of DONE have none: theirs are P to P.
    """

    pointers: np.ndarray  # (N + 1,) int32
    keys: np.ndarray  # (E,) int64, parent * 2**32 + token, ascending: the table for the look-ups of a step
    spans: np.ndarray  # (E, 2) int32, the leaves below an edge: the first, and one past the last
    items: np.ndarray  # (P + 1,) int32, the item of a leaf; the last entry is C, which stands for no item
    first_edges: np.ndarray  # (P,) int32, the edge by which a leaf's root is left
    leaves: np.ndarray  # (C, D) int32, the leaves of an item, one below each distinct root
    lengths: np.ndarray  # (C,) int32, maximum number of tokens of an item in any place
    roots: np.ndarray  # (2, 3) int64, _START and _NEXT, where equal roots are one

    @classmethod
    def build(cls, lines: Sequence[str], tokenizer: Any, context: str | None = None) -> "CatalogTrie":
        """Return the trie of these lines (their index is the item), as the tokenizer writes them after `context`.

        The context is the end of the prompts, by default what the chat template ends them with. Lists end with the
        tokenizer's EOS. Raises `InputError` for lines that cannot be written to the letter, or are equal.
        """
        if not lines:
            raise InputError("catalog: it has no items; give at least one line")
        if tokenizer.eos_token_id is None:
            raise InputError("tokenizer: it has no EOS token, which must end a list; set its eos_token")
        prompt = generation_prompt(tokenizer) if context is None else context
        places = collect(tokenize_batches(lines, tokenizer, prompt))
        return _build(places, tokenizer.eos_token_id, tokenizer.pad_token_id)

    @classmethod
    def load(cls, path: str | Path) -> "CatalogTrie":
        """Return the trie that was saved in a safetensors file."""
        from safetensors.numpy import load_file  # noqa: PLC0415

        return cls(**load_file(path))

    def save(self, path: str | Path) -> None:
        """Write the trie to a safetensors file."""
        from safetensors.numpy import save_file  # noqa: PLC0415

        save_file(self._arrays(), path)

    @property
    def num_items(self) -> int:
        """The number of items of the catalog, C."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(value.nbytes for value in self._arrays().values())

    @cached_property
    def vocab_size(self) -> int:
        """The minimum vocabulary size that contains all tokens of the trie."""
        return int((self.keys & _TOKEN).max()) + 1

    @cached_property
    def alphabet(self) -> np.ndarray:
        """The tokens of the trie, ascending. Shape: (A,)."""
        return np.unique(self.keys & _TOKEN)

    @cached_property
    def columns(self) -> np.ndarray:
        """The place of each edge's token in the alphabet. Shape: (E,)."""
        return np.searchsorted(self.alphabet, self.keys & _TOKEN)

    @cached_property
    def forced(self) -> np.ndarray:
        """The token that alone can follow a node below the roots, -1 where several can. Shape: (N,)."""
        starts = self.pointers[:-1]
        is_single = np.diff(self.pointers) == 1
        is_single[:_NUM_ROOTS] = False
        tokens = self.keys[np.minimum(starts, len(self.keys) - 1)] & _TOKEN
        return np.where(is_single, tokens, -1)

    @cached_property
    def last_edges(self) -> np.ndarray:
        """The edge that leads to each leaf. Shape: (P,)."""
        nodes = _NUM_ROOTS + np.arange(len(self.keys))
        edges = np.flatnonzero(
            (self.pointers[nodes] == self.pointers[nodes + 1]) & (self.spans[:, 0] < len(self.first_edges))
        )
        last: np.ndarray = edges[np.argsort(self.spans[edges, 0])]
        return last

    @cached_property
    def root_spans(self) -> np.ndarray:
        """The span of each root: of all its edges. Shape: (5, 2)."""
        starts, ends = self.pointers[:_NUM_ROOTS], self.pointers[1 : _NUM_ROOTS + 1]
        spans = np.stack([self.spans[starts, 0], self.spans[np.maximum(ends - 1, 0), 1]], axis=1)
        return np.where((starts < ends)[:, None], spans, 0)

    @cached_property
    def _child_keys(self) -> np.ndarray:
        """Return parent * (P + 1) + first leaf of each edge, ascending. Shape: (E,)."""
        return (self.keys >> 32) * (len(self.first_edges) + 1) + self.spans[:, 0]

    def node_spans(self, nodes: np.ndarray) -> np.ndarray:
        """Return the leaves below each node: the first, and one past the last. Shape: (nodes, 2)."""
        below = self.spans[np.maximum(nodes - _NUM_ROOTS, 0)]
        spans: np.ndarray = np.where((nodes < _NUM_ROOTS)[:, None], self.root_spans[np.minimum(nodes, DONE)], below)
        return spans

    def edges_to(self, nodes: np.ndarray, leaves: np.ndarray) -> np.ndarray:
        """Return the edge by which each node is left for a leaf below it. Shape: all (n,)."""
        edges: np.ndarray = self.first_edges[leaves].astype(np.int64)
        below = np.flatnonzero(nodes >= _NUM_ROOTS)
        keys = nodes[below] * (len(self.first_edges) + 1) + leaves[below]
        edges[below] = np.searchsorted(self._child_keys, keys, side="right") - 1
        return edges

    def longest(self, length: int) -> int:
        """Return an upper bound on the tokens of a list of this length, EOS included, for `max_new_tokens`."""
        return int(np.sort(self.lengths)[-min(length, self.num_items) :].sum())

    def check(self, requests: Iterable[ListRequest]) -> None:
        """Raise `InputError` for a list of no items or of more than are open, for an item or weight that cannot be."""
        for request in requests:
            self.listed(request)
            self.weighted(request)

    def listed(self, request: ListRequest) -> tuple[np.ndarray, bool]:
        """Return the items that are open to a request, or those that are closed to it, and whether it is the former.

        Of the two, the fewer. Raises `InputError` as `check` does.
        """
        banned = self._indices(request.banned, "banned")
        if request.allowed is None:
            some, is_open, num_open = banned, False, self.num_items - len(banned)
        else:
            some, is_open = np.setdiff1d(self._indices(request.allowed, "allowed"), banned), True
            num_open = len(some)
            if num_open > self.num_items // 2:
                some, is_open = np.setdiff1d(np.arange(self.num_items), some), False
        if not 1 <= request.length <= num_open:
            raise InputError(
                f"a list of {request.length} items is asked for, and {num_open} of the "
                f"catalog's {self.num_items} can be used; request at most that many, or allow more items"
            )
        return some, is_open

    def weighted(self, request: ListRequest) -> tuple[np.ndarray, np.ndarray]:
        """Return the items that have a weight, ascending, and the logarithms of these.

        Raises `InputError` for an item that is not there, and for a logarithm that is not between -100 and 100.
        """
        given = request.log_weights
        order = np.argsort(np.fromiter(given.keys(), np.int64, len(given)))
        values = np.fromiter(given.values(), np.float64, len(given))[order]
        wrong = values[~(np.abs(values) <= LARGEST_LOG)]
        if len(wrong):
            raise InputError(
                f"log_weights: {wrong[0]} is not between -{LARGEST_LOG} and {LARGEST_LOG}; lower the evidence's weight"
            )
        return self._indices(given.keys(), "log_weights"), values

    def closed(self, request: ListRequest) -> np.ndarray:
        """Return the items that are closed to a request. Raises `InputError` as `check` does."""
        items, is_open = self.listed(request)
        return np.setdiff1d(np.arange(self.num_items), items) if is_open else items

    def _indices(self, items: Collection[int], name: str) -> np.ndarray:
        indices = np.unique(np.fromiter(items, dtype=np.int64, count=len(items)))
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.num_items:
            wrong = next(i for i in indices.tolist() if not 0 <= i < self.num_items)
            raise InputError(f"{name}: {wrong} is no item; the catalog's are 0 to {self.num_items - 1}")
        return indices

    def _arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _build(places: Sequence[Sequences], eos: int, pad: int | None) -> CatalogTrie:
    """Return the trie of the lines' tokens in each place, in the order of the roots (that of `LineTokens`)."""
    num_items = len(places[0].lengths)
    # a root whose lines are written as at another's is that other
    alias = list(range(_NUM_ROOTS))
    for first, later in ((FIRST_OF_MORE, LATER_OF_MORE), (FIRST_AND_LAST, LATER_AND_LAST)):
        if places[first].equals(places[later]):
            alias[first] = later
    distinct = [root for root in range(DONE) if alias[root] == root]
    ends = sorted({eos, eos if pad is None else pad})
    whole = [places[r] if r in (FIRST_OF_MORE, LATER_OF_MORE) else places[r].ended(eos) for r in distinct]
    roots = np.repeat([*distinct, DONE], [*(num_items for _ in distinct), len(ends)])
    edges = Edges.of(Sequences.concatenate([*whole, Sequences.of([(token,) for token in ends])]), roots, _NUM_ROOTS)
    num_leaves = num_items * len(distinct)  # those of DONE come behind
    leaves = edges.leaf[:num_leaves].reshape(len(distinct), num_items)
    items, first_edges = np.full(num_leaves + 1, num_items), np.empty(num_leaves, np.int64)
    items[leaves] = np.arange(num_items)
    first_edges[leaves] = edges.first[:num_leaves].reshape(leaves.shape)
    is_last = [place in (FIRST_AND_LAST, LATER_AND_LAST) for place in range(DONE)]
    parents = edges.keys >> 32
    arrays = {
        "pointers": np.searchsorted(parents, np.arange(_NUM_ROOTS + len(parents) + 1)),
        "spans": np.stack([edges.low, edges.high], axis=1).clip(max=num_leaves),
        "items": items,
        "first_edges": first_edges,
        "leaves": leaves.T,
        "lengths": np.max([own.lengths + last for own, last in zip(places, is_last, strict=True)], axis=0),
    }
    arrays = {name: value.astype(np.int32, order="C") for name, value in arrays.items()}
    by_remaining = np.array([[alias[root] for root in by_remaining] for by_remaining in (_START, _NEXT)])
    return CatalogTrie(keys=np.ascontiguousarray(edges.keys), roots=by_remaining, **arrays)


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
        self.vocab_size = vocab_size
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
        self._weights = np.empty(0)
        # 0 for the first tokens of a root, else -inf: to add is far quicker than to choose by booleans. The last row is
        # that of lists which stand below a root, and of those to which nothing is open at first.
        self._layers, self._bias = _root_biases(trie, vocab_size)
        self._below = len(self._bias) - 1
        self.lost = np.zeros(size, bool)  # rows that received a forbidden token
        self.put(self._rows[: len(requests)], requests)

    @property
    def nbytes(self) -> int:
        """The size of the state in bytes."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray | torch.Tensor))

    def put(self, rows: Rows, requests: Sequence[ListRequest]) -> None:
        """Begin these lists in these rows."""
        rows = np.asarray(rows, np.int64)
        listed = [self._trie.listed(request) for request in requests]
        length = np.array([request.length for request in requests], np.int64)
        opened = np.array([is_open for _, is_open in listed], np.int64)
        kept = ~np.isin(self._keys // self._num_leaves, rows)
        self._keys, self._signs = self._keys[kept], self._signs[kept]
        self._put_weights(rows, requests, listed)
        sizes = [len(items) for items, _ in listed]
        items = np.concatenate([np.empty(0, np.int64), *(items for items, _ in listed)])
        self._add(np.repeat(rows, sizes), items, np.repeat(2 * opened - 1, sizes))
        self._is_open[rows] = 1 - opened
        self._remaining[rows] = length
        self._nodes[rows] = self._trie.roots[0, np.minimum(length, 2)]
        self.lost[rows] = False

    def _put_weights(
        self, rows: np.ndarray, requests: Sequence[ListRequest], listed: Sequence[tuple[np.ndarray, bool]]
    ) -> None:
        """Replace the weights of these rows by those of the requests' open items."""
        kept = ~np.isin(self._weighted // self._num_leaves, rows)
        keys, weights = [self._weighted[kept]], [self._weights[kept]]
        for row, request, (some, is_open) in zip(rows.tolist(), requests, listed, strict=True):
            if request.log_weights:
                items, logs = self._trie.weighted(request)
                found = np.isin(items, some) == is_open
                leaves = self._trie.leaves[items[found]]
                keys.append((row * self._num_leaves + leaves).ravel())
                weights.append(np.exp(logs[found]).repeat(leaves.shape[1]))
        if len(keys) > 1:
            whole = np.concatenate(keys)
            order = np.argsort(whole, kind="stable")
            self._weighted, self._weights = whole[order], np.concatenate(weights)[order]
        else:
            self._weighted, self._weights = keys[0], weights[0]

    def allowed(self, rows: Rows | None = None) -> torch.Tensor:
        """Return the allowed next tokens as booleans (B, vocab_size); EOS and pad after a list's end."""
        layers, opened, closed, _, _ = self.allowance(rows)
        allowed = self._bias.cpu().isfinite()[torch.from_numpy(layers)]
        for (at, tokens), value in ((opened, True), (closed, False)):
            allowed[torch.from_numpy(at), torch.from_numpy(tokens)] = value
        return allowed

    def mask_(self, scores: torch.Tensor, rows: Rows | None = None, *, of_beams: bool = False) -> torch.Tensor:
        """Set the scores (B, vocab_size) of forbidden next tokens to -inf and guide the others, in place; return them.

        Scores are unnormalized. Those `of_beams` are summed over steps: each guided row is then shifted by a number, so
        that the guidance along an item's tokens sums to the item's, up to a number of its root.
        """
        layers, opened, closed, guided, bias = self.allowance(rows)
        self._bias = self._bias.to(scores.device)
        below = np.flatnonzero(layers == self._below)
        parts = *opened, *closed, *guided, below
        index = torch.from_numpy(np.concatenate(parts)).to(scores.device)  # one transfer
        opened_at, opened_tokens, closed_at, closed_tokens, at, tokens, shut = index.split([len(own) for own in parts])
        kept = scores[opened_at, opened_tokens]
        if self._below == 1:  # the usual case: the bias need not be gathered
            if len(below) < len(layers):
                scores.add_(self._bias[0])
            if len(below):
                scores.index_fill_(0, shut, -torch.inf)
        else:
            scores.add_(self._bias[torch.from_numpy(layers).to(scores.device)])
        scores[opened_at, opened_tokens] = kept
        if len(closed[0]):
            scores[closed_at, closed_tokens] = -torch.inf
        if len(bias):
            scores[at, tokens] += torch.from_numpy(bias).to(scores.device, scores.dtype)
        if of_beams and len(self._weighted):
            scores -= torch.from_numpy(self._mean_below(rows)).to(scores.device, scores.dtype)[:, None]
        return scores

    def _mean_below(self, rows: Rows | None) -> np.ndarray:
        """Return the logarithm of the mean weight of the open items below each row's node. Shape: (B,), float32."""
        rows = self._rows if rows is None else np.asarray(rows, np.int64)
        nodes = self._nodes[rows]
        spans = self._trie.node_spans(nodes) + (rows * self._num_leaves)[:, None]
        which, places = ranges(*np.searchsorted(self._weighted, spans.T))
        mass = np.bincount(which, self._weights[places], minlength=len(rows))
        number = np.bincount(which, minlength=len(rows))
        sums = self._sums[np.searchsorted(self._keys, spans)]
        num_open = (sums + spans * self._is_open[rows][:, None]) @ np.array([-1, 1])
        return mean_log(mass, number, np.where(nodes == DONE, 1, np.maximum(num_open, 1)))

    def allowance(self, rows: Rows | None = None) -> _Allowance:
        """Return which next tokens are allowed, and the guidance of those."""
        rows = self._rows if rows is None else np.asarray(rows, np.int64)
        nodes = self._nodes[rows]
        layers = self._layers[np.minimum(nodes, _NUM_ROOTS)]
        at_root = layers < self._below
        at, edges = self._edges_from(nodes, at_root)
        of_leaves, first_edges = self._listed_below(rows, nodes, at_root)
        at, edges = np.concatenate([at, of_leaves]), np.concatenate([edges, first_edges])
        tokens = self._trie.keys[edges] & _TOKEN
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
        found = np.searchsorted(self._weighted, self._trie.node_spans(nodes) + offsets[:, None])
        which, places = ranges(found[:, 0], found[:, 1])
        edges = self._trie.edges_to(nodes[which], self._weighted[places] - offsets[which])
        first, mass, number = sums_of_runs(which, edges, self._weights[places])
        at, edges = which[first], edges[first]
        num_open = np.ones(len(edges), np.int64)  # where there is one leaf, it is a weighted one
        several = np.flatnonzero(np.diff(self._trie.spans[edges], axis=1)[:, 0] > 1)
        num_open[several] = self._num_open(rows[at[several]], edges[several])
        bias = mean_log(mass, number, num_open)
        return (at, self._trie.keys[edges] & _TOKEN), bias

    def _edges_from(self, nodes: np.ndarray, at_root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return every edge that leads on from nodes below the roots: the index of the node, and the edge."""
        below = np.flatnonzero(~at_root)
        which, edges = ranges(self._trie.pointers[nodes[below]], self._trie.pointers[nodes[below] + 1])
        return below[which], edges

    def _listed_below(self, rows: np.ndarray, nodes: np.ndarray, at_root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first edge to each leaf that a row at a root holds: the index of the node, and the edge."""
        roots = np.flatnonzero(at_root)
        offsets = rows[roots] * self._num_leaves
        found = np.searchsorted(self._keys, self._trie.root_spans[nodes[roots]] + offsets[:, None])
        which, places = ranges(found[:, 0], found[:, 1])
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
        nodes = edges + _NUM_ROOTS
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
            gone = places[self._weighted[places] == keys]
            self._weighted, self._weights = np.delete(self._weighted, gone), np.delete(self._weights, gone)


def root_layers(trie: CatalogTrie) -> tuple[np.ndarray, np.ndarray]:
    """Return the layer of each root, and of other nodes behind them, and the layers: which tokens are first tokens.

    Roots of the same first tokens share a layer. The last two layers have no token, as DONE and the other nodes, and
    all tokens. Shape: (6,) and (layers, A), booleans by the trie's alphabet.
    """
    layers = np.full(_NUM_ROOTS + 1, -1)
    distinct: list[np.ndarray] = []
    for root in range(DONE):
        tokens = np.zeros(len(trie.alphabet), bool)
        tokens[trie.columns[trie.pointers[root] : trie.pointers[root + 1]]] = True
        if tokens.any():
            equal = [layer for layer, other in enumerate(distinct) if np.array_equal(tokens, other)]
            layers[root] = equal[0] if equal else len(distinct)
            distinct += [] if equal else [tokens]
    nothing = np.zeros(len(trie.alphabet), bool)
    return np.where(layers >= 0, layers, len(distinct)), np.stack([*distinct, nothing, ~nothing])


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
    which = np.repeat(np.arange(len(sizes)), sizes)
    nth = np.arange(len(which)) - (sizes.cumsum() - sizes)[which]
    return which, starts[which] + nth


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


def catalog_trie(catalog: Catalog, tokenizer: Any) -> CatalogTrie:
    """Return the trie of a catalog's lines, each item under its index; raises `InputError` for one it cannot write."""
    return CatalogTrie.build([str(item) for item in catalog.items], tokenizer)
