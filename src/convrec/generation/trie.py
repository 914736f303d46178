"""The catalog as a trie over token ids, and the lists that are asked of it.

The trie is flattened to CSR arrays, as in STATIC (arXiv 2602.22647).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from convrec.data.catalog import Catalog
from convrec.generation.line_tokens import tokenize_batches
from convrec.generation.prompt_tokens import generation_prompt
from convrec.generation.trie_build import Edges, Sequences, collect
from convrec.project.errors import InputError

# The roots, which are the first nodes: the next token begins a line. The root depends on whether it is the
# first line, and on whether another line follows. At DONE the list has ended.
FIRST_OF_MORE, FIRST_AND_LAST, LATER_OF_MORE, LATER_AND_LAST, DONE = range(5)
NUM_ROOTS = 5
_START = (DONE, FIRST_AND_LAST, FIRST_OF_MORE)  # the root of a list by the lines that remain, 2 for any more
_NEXT = (DONE, LATER_AND_LAST, LATER_OF_MORE)

TOKEN = 2**32 - 1  # of a key: the token
LARGEST_LOG = 100  # of an item's weight


@dataclass(frozen=True, eq=False, slots=True)
class LogWeights:
    """The natural logarithms of the weights of n items; all others have 0. Shape: (n,) int32, ascending; float32."""

    items: np.ndarray
    logs: np.ndarray

    def __len__(self) -> int:
        return len(self.items)


NO_GUIDANCE = LogWeights(np.empty(0, np.int32), np.empty(0, np.float32))
# Returns the weights that guide the list of each row of the data; see `classical.guidance`.
Guide = Callable[[Sequence[Any]], Sequence[LogWeights]]


@dataclass(frozen=True)
class ListRequest:
    """One list: how many items, and which (catalog indices) it may hold: those `allowed` (None: all), none `banned`.

    `log_weights` guide the list.
    """

    length: int
    banned: Collection[int] = ()
    allowed: Collection[int] | None = None
    log_weights: LogWeights = NO_GUIDANCE


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
    lengths: np.ndarray  # (C,) int32, maximum number of tokens of an item in any place, without EOS
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

        save_file({field.name: getattr(self, field.name) for field in fields(self)}, path)

    @property
    def num_items(self) -> int:
        """The number of items of the catalog, C."""
        return len(self.lengths)

    @cached_property
    def vocab_size(self) -> int:
        """The minimum vocabulary size that contains all tokens of the trie."""
        return int((self.keys & TOKEN).max()) + 1

    @cached_property
    def is_one_pass(self) -> bool:
        """Whether each item is one token: the distribution before a list then ranks all items, and is read once."""
        return bool(self.lengths.max() == 1)

    @cached_property
    def alphabet(self) -> np.ndarray:
        """The tokens of the trie, ascending. Shape: (A,)."""
        return np.unique(self.keys & TOKEN)

    @cached_property
    def columns(self) -> np.ndarray:
        """The place of each edge's token in the alphabet. Shape: (E,)."""
        return np.searchsorted(self.alphabet, self.keys & TOKEN)

    @cached_property
    def num_below(self) -> np.ndarray:
        """The number of leaves below each edge. Shape: (E,)."""
        return self.spans[:, 1] - self.spans[:, 0]

    @cached_property
    def forced(self) -> np.ndarray:
        """The token that alone can follow a node below the roots, -1 where several can. Shape: (N,)."""
        is_single = np.diff(self.pointers) == 1
        is_single[:NUM_ROOTS] = False
        tokens = self.keys[np.minimum(self.pointers[:-1], len(self.keys) - 1)] & TOKEN
        return np.where(is_single, tokens, -1)

    @cached_property
    def runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The runs of edges that begin with one that can be chosen, and go on as long as one token alone can follow.

        The first three arrays are by edge (E,), and hold of those that begin a run the place of its first token among
        the tokens of all runs, the last array, its length, and its last edge.
        """
        following = np.where(self.forced[NUM_ROOTS:] >= 0, self.pointers[NUM_ROOTS:-1], -1)
        begins = np.ones(len(self.keys), bool)
        begins[following[following >= 0]] = False
        first = np.flatnonzero(begins)
        starts, lengths, ends = np.zeros(len(self.keys), np.int64), begins.astype(np.int64), np.arange(len(self.keys))
        levels = [(first, first)]
        while len(levels[-1][0]):
            run, edges = levels[-1]
            run, edges = run[following[edges] >= 0], following[edges[following[edges] >= 0]]
            lengths[run] += 1
            ends[run] = edges
            levels.append((run, edges))
        starts[first] = np.cumsum(lengths[first]) - lengths[first]
        tokens = np.zeros(len(self.keys), np.int64)
        for place, (run, edges) in enumerate(levels):
            tokens[starts[run] + place] = self.keys[edges] & TOKEN
        return starts, lengths, ends, tokens

    @cached_property
    def last_edges(self) -> np.ndarray:
        """The edge that leads to each leaf. Shape: (P,)."""
        nodes = NUM_ROOTS + np.arange(len(self.keys))
        edges = np.flatnonzero(
            (self.pointers[nodes] == self.pointers[nodes + 1]) & (self.spans[:, 0] < len(self.first_edges))
        )
        last: np.ndarray = edges[np.argsort(self.spans[edges, 0])]
        return last

    @cached_property
    def root_spans(self) -> np.ndarray:
        """The span of each root: of all its edges. Shape: (5, 2)."""
        starts, ends = self.pointers[:NUM_ROOTS], self.pointers[1 : NUM_ROOTS + 1]
        spans = np.stack([self.spans[starts, 0], self.spans[np.maximum(ends - 1, 0), 1]], axis=1)
        return np.where((starts < ends)[:, None], spans, 0)

    @cached_property
    def child_keys(self) -> np.ndarray:
        """The keys parent * (P + 1) + first leaf of the edges, ascending. Shape: (E,)."""
        return (self.keys >> 32) * (len(self.first_edges) + 1) + self.spans[:, 0]

    def node_spans(self, nodes: np.ndarray) -> np.ndarray:
        """Return the leaves below each node: the first, and one past the last. Shape: (nodes, 2)."""
        below = self.spans[np.maximum(nodes - NUM_ROOTS, 0)]
        spans: np.ndarray = np.where((nodes < NUM_ROOTS)[:, None], self.root_spans[np.minimum(nodes, DONE)], below)
        return spans

    def edges_to(self, nodes: np.ndarray, leaves: np.ndarray) -> np.ndarray:
        """Return the edge by which each node is left for a leaf below it. Shape: all (n,)."""
        edges: np.ndarray = self.first_edges[leaves].astype(np.int64)
        below = np.flatnonzero(nodes >= NUM_ROOTS)
        keys = nodes[below] * (len(self.first_edges) + 1) + leaves[below]
        edges[below] = np.searchsorted(self.child_keys, keys, side="right") - 1
        return edges

    def longest(self, length: int) -> int:
        """Return an upper bound on the tokens of a list of this length, EOS included, for `max_new_tokens`."""
        return int(np.sort(self.lengths)[-min(length, self.num_items) :].sum()) + 1

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
        """Return the items that have a weight, ascending, and these weights, float64.

        Raises `InputError` for items that are not there or do not ascend, and for a logarithm that is not between -100
        and 100.
        """
        items, logs = request.log_weights.items, request.log_weights.logs
        if (items[1:] <= items[:-1]).any():
            raise InputError("log_weights: its items do not ascend; sort them, each once")
        self._require_items(items[[0, -1]] if len(items) else items, "log_weights")
        wrong = logs[~(np.abs(logs) <= LARGEST_LOG)]  # also what is no number
        if len(wrong):
            limits = f"between -{LARGEST_LOG} and {LARGEST_LOG}"
            raise InputError(f"log_weights: {wrong[0]} is not {limits}; lower the evidence's weight")
        return items, np.exp(logs, dtype=np.float64)

    def closed(self, request: ListRequest) -> np.ndarray:
        """Return the items that are closed to a request. Raises `InputError` as `check` does."""
        items, is_open = self.listed(request)
        return np.setdiff1d(np.arange(self.num_items), items) if is_open else items

    def _indices(self, items: Collection[int], name: str) -> np.ndarray:
        indices = np.unique(np.fromiter(items, dtype=np.int64, count=len(items)))
        self._require_items(indices, name)
        return indices

    def _require_items(self, indices: np.ndarray, name: str) -> None:
        wrong = indices[(indices < 0) | (indices >= self.num_items)]
        if len(wrong):
            raise InputError(f"{name}: {wrong[0]} is no item; the catalog's are 0 to {self.num_items - 1}")


def _build(places: Sequence[Sequences], eos: int, pad: int | None) -> CatalogTrie:
    """Return the trie of the lines' tokens in each place, in the order of the roots (that of `LineTokens`)."""
    num_items = len(places[0].lengths)
    # a root whose lines are written as at another's is that other
    alias = list(range(NUM_ROOTS))
    for first, later in ((FIRST_OF_MORE, LATER_OF_MORE), (FIRST_AND_LAST, LATER_AND_LAST)):
        if places[first].equals(places[later]):
            alias[first] = later
    distinct = [root for root in range(DONE) if alias[root] == root]
    ends = sorted({eos, eos if pad is None else pad})
    whole = [places[r] if r in (FIRST_OF_MORE, LATER_OF_MORE) else places[r].ended(eos) for r in distinct]
    roots = np.repeat([*distinct, DONE], [*(num_items for _ in distinct), len(ends)])
    edges = Edges.of(Sequences.concatenate([*whole, Sequences.of([(token,) for token in ends])]), roots, NUM_ROOTS)
    num_leaves = num_items * len(distinct)  # those of DONE come behind
    leaves = edges.leaf[:num_leaves].reshape(len(distinct), num_items)
    items, first_edges = np.full(num_leaves + 1, num_items), np.empty(num_leaves, np.int64)
    items[leaves] = np.arange(num_items)
    first_edges[leaves] = edges.first[:num_leaves].reshape(leaves.shape)
    parents = edges.keys >> 32
    arrays = {
        "pointers": np.searchsorted(parents, np.arange(NUM_ROOTS + len(parents) + 1)),
        "spans": np.stack([edges.low, edges.high], axis=1).clip(max=num_leaves),
        "items": items,
        "first_edges": first_edges,
        "leaves": leaves.T,
        "lengths": np.max([own.lengths for own in places], axis=0),
    }
    arrays = {name: value.astype(np.int32, order="C") for name, value in arrays.items()}
    by_remaining = np.array([[alias[root] for root in by_remaining] for by_remaining in (_START, _NEXT)])
    return CatalogTrie(keys=np.ascontiguousarray(edges.keys), roots=by_remaining, **arrays)


def root_layers(trie: CatalogTrie) -> tuple[np.ndarray, np.ndarray]:
    """Return the layer of each root, and of other nodes behind them, and the layers: which tokens are first tokens.

    Roots of the same first tokens share a layer. The last two layers have no token, as DONE and the other nodes, and
    all tokens. Shape: (6,) and (layers, A), booleans by the trie's alphabet.
    """
    layers = np.full(NUM_ROOTS + 1, -1)
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


def catalog_trie(catalog: Catalog, tokenizer: Any) -> CatalogTrie:
    """Return the trie of a catalog's lines, each item under its index; raises `InputError` for one it cannot write."""
    return CatalogTrie.build([str(item) for item in catalog.items], tokenizer)


def require_length(name: str, max_completion_length: int, trie: CatalogTrie, size: int) -> None:
    """Raise `InputError` where constrained lists of `size` items can take more tokens than the parameter allows."""
    longest = trie.longest(size)
    if longest > max_completion_length:
        raise InputError(
            f"{name} = {max_completion_length}: {size} items of the catalog can take {longest} tokens, and a "
            f"constrained list must be whole; set it to {longest} or more"
        )
