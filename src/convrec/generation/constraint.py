"""Decoding that can write nothing but lists of catalog items: a trie over token ids, and the state of a batch in it.

The design is that of STATIC (arXiv 2602.22647): the trie is flattened to CSR arrays, its first level is kept as a dense
mask, and a step of decoding is a few tensor operations for the whole batch, on the model's device.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from convrec.errors import InputError
from convrec.generation.line_tokens import LineTokens, Tokens, generation_prompt, tokenize_lines

# The roots, which are the first nodes: where the next token begins a line. Which of them depends on whether it is the
# first line, and on whether another follows. At DONE the list is at its end.
FIRST_OF_MORE, FIRST_AND_LAST, LATER_OF_MORE, LATER_AND_LAST, DONE = range(5)
_NUM_ROOTS = 5
_START = (DONE, FIRST_AND_LAST, FIRST_OF_MORE)  # the root of a list by the lines that remain, 2 for any more
_NEXT = (DONE, LATER_AND_LAST, LATER_OF_MORE)

_ALWAYS = 2**30  # count of the column that is always open: closing cannot bring it to 0


@dataclass(frozen=True)
class ListRequest:
    """One list: how many items, and which (catalog indices) it may hold: those `allowed` (None: all), none `banned`."""

    length: int
    banned: Collection[int] = ()
    allowed: Collection[int] | None = None


@dataclass(frozen=True, eq=False)
class CatalogTrie:
    """The token sequences of C catalog lines as a trie of N nodes and E edges, in CSR form; all arrays are int64.

    The edges of node x are `pointers[x]` to `pointers[x + 1]`, their tokens ascending; edge e leads to node
    e + 5 (the roots have no edge to them). A sequence ends with its newline or with EOS, so that none is the
    beginning of another and every leaf is one item.

    What is open below a node is counted in a column of the batch's state: columns 0 to C - 1 are the items, column C
    is always open, and each further one is a set of items that some node stands for; nodes of equal sets share it.
    """

    pointers: torch.Tensor  # (N + 1,)
    tokens: torch.Tensor  # (E,)
    keys: torch.Tensor  # (E,) parent * 2**32 + token, ascending: what a step is looked up in
    items: torch.Tensor  # (N,) the item of a leaf, C for other nodes
    columns: torch.Tensor  # (N,)
    item_columns: torch.Tensor  # (C + 1, D) the columns that an item counts in, filled up with C
    sizes: torch.Tensor  # (sets,) how many items a further column counts
    layers: torch.Tensor  # (6,) the dense layer of a root; -1 for DONE, and for all other nodes (the last)
    first_tokens: torch.Tensor  # (layers, C) the first token of an item
    first_columns: torch.Tensor  # (layers, C) and the column of the node behind it
    lengths: torch.Tensor  # (C,) tokens of an item, the most that any place takes
    roots: torch.Tensor  # (2, 3) _START and _NEXT, where equal roots are one

    @classmethod
    def build(cls, lines: Sequence[str], tokenizer: Any, context: str | None = None) -> "CatalogTrie":
        """Return the trie of these lines (their index is the item), as the tokenizer writes them after `context`.

        The context is the end of the prompts, by default what the chat template ends them with. Lists end with the
        tokenizer's EOS. Raises `InputError` for lines that cannot be written to the letter, or are equal.
        """
        if not lines:
            raise InputError("catalog: it holds no item; give at least one line")
        if tokenizer.eos_token_id is None:
            raise InputError("tokenizer: it has no EOS token, which must end a list; set its eos_token")
        prompt = generation_prompt(tokenizer) if context is None else context
        rows = tokenize_lines(lines, tokenizer, prompt)
        return _build(rows, tokenizer.eos_token_id, tokenizer.pad_token_id)

    @classmethod
    def load(cls, path: str | Path) -> "CatalogTrie":
        """Return the trie that was saved in a safetensors file."""
        from safetensors.torch import load_file  # noqa: PLC0415

        return cls(**load_file(path))

    def save(self, path: str | Path) -> None:
        """Write the trie to a safetensors file."""
        from safetensors.torch import save_file  # noqa: PLC0415

        save_file({name: value.contiguous() for name, value in self._arrays().items()}, path)

    def to(self, device: str | torch.device) -> "CatalogTrie":
        """Return the trie on this device."""
        return replace(self, **{name: value.to(device) for name, value in self._arrays().items()})

    @property
    def num_items(self) -> int:
        """How many items the catalog has, C."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """The memory that the arrays take, in bytes."""
        return sum(value.nbytes for value in self._arrays().values())

    @property
    def vocab_size(self) -> int:
        """The least vocabulary that has all tokens of the trie."""
        return int(self.tokens.max()) + 1

    def longest(self, length: int) -> int:
        """Return a bound on the tokens of a list of so many items, EOS included: the `max_new_tokens` that it needs."""
        return int(self.lengths.topk(min(length, self.num_items)).values.sum())

    def open_items(self, requests: Sequence[ListRequest]) -> torch.Tensor:
        """Return which items each request may hold, as booleans (B, C) on the CPU.

        Raises `InputError` for a list of no items or of more than are open, and for an item that is not there.
        """
        rows = np.ones((len(requests), self.num_items), dtype=bool)
        for is_open, request in zip(rows, requests, strict=True):
            if request.allowed is not None:
                is_open[:] = False
                is_open[self._indices(request.allowed, "allowed")] = True
            is_open[self._indices(request.banned, "banned")] = False
            if not 1 <= request.length <= is_open.sum():
                raise InputError(
                    f"a list of {request.length} items is asked for, and {is_open.sum()} of the "
                    f"catalog's {self.num_items} are left for it; ask for 1 to that many, or allow more"
                )
        return torch.from_numpy(rows)

    def _indices(self, items: Collection[int], name: str) -> np.ndarray:
        indices = np.fromiter(items, dtype=np.int64, count=len(items))
        if len(indices) and not 0 <= indices.min() <= indices.max() < self.num_items:
            wrong = next(i for i in indices.tolist() if not 0 <= i < self.num_items)
            raise InputError(f"{name}: {wrong} is no item; the catalog's are 0 to {self.num_items - 1}")
        return indices

    def _arrays(self) -> dict[str, torch.Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _build(lines: Sequence[LineTokens], eos: int, pad: int | None) -> CatalogTrie:
    num_items, places = len(lines), [list(place) for place in zip(*lines, strict=True)]
    # a root whose lines are written as at another's is that other; the order of LineTokens is that of the roots
    alias = list(range(_NUM_ROOTS))
    for first, later in ((FIRST_OF_MORE, LATER_OF_MORE), (FIRST_AND_LAST, LATER_AND_LAST)):
        if places[first] == places[later]:
            alias[first] = later
    distinct = [root for root in range(DONE) if alias[root] == root]
    written = [
        (root, line if root in (FIRST_OF_MORE, LATER_OF_MORE) else (*line, eos), item)
        for root in distinct
        for item, line in enumerate(places[root])
    ]
    written += [(DONE, (token,), num_items) for token in {eos, eos if pad is None else pad}]
    written.sort()
    roots, leaf_items = (np.array([row[column] for row in written]) for column in (0, 2))
    edges = _Edges.of(roots, [sequence for _, sequence, _ in written])
    num_nodes = _NUM_ROOTS + len(edges.tokens)
    items = np.full(num_nodes, num_items)
    items[_NUM_ROOTS + edges.last] = leaf_items
    sets = _ItemSets(leaf_items, num_items)
    columns = np.array(
        [num_items] * _NUM_ROOTS
        + [sets.column(low, high) for low, high in zip(edges.low.tolist(), edges.high.tolist(), strict=True)]
    )
    layers = np.full(_NUM_ROOTS + 1, -1)
    firsts: list[np.ndarray] = []  # token and column of every item, a layer; roots where they are equal share it
    for root in distinct:
        at = np.flatnonzero(roots == root)[np.argsort(leaf_items[roots == root])]
        of_items = np.stack([edges.tokens[edges.first[at]], columns[_NUM_ROOTS + edges.first[at]]])
        equal = [layer for layer, other in enumerate(firsts) if np.array_equal(of_items, other)]
        layers[root] = equal[0] if equal else len(firsts)
        firsts += [] if equal else [of_items]
    arrays = {
        "pointers": np.searchsorted(edges.parents, np.arange(num_nodes + 1)),
        "tokens": edges.tokens,
        "keys": (edges.parents << 32) + edges.tokens,
        "items": items,
        "columns": columns,
        "item_columns": sets.item_columns(),
        "sizes": [high - low for low, high in sets.ranges],
        "layers": layers,
        "first_tokens": [tokens for tokens, _ in firsts],
        "first_columns": [of_token for _, of_token in firsts],
        "lengths": [max(len(first), len(only) + 1, len(later), len(last) + 1) for first, only, later, last in lines],
        "roots": [[alias[root] for root in by_remaining] for by_remaining in (_START, _NEXT)],
    }
    return CatalogTrie(**{name: torch.as_tensor(np.asarray(value, np.int64)) for name, value in arrays.items()})


class _Edges(NamedTuple):
    """The E edges of the trie of S sorted sequences, level by level, so that the edges of a node are neighbours."""

    parents: np.ndarray  # (E,) nodes
    tokens: np.ndarray  # (E,)
    low: np.ndarray  # (E,) the first of the sequences below the edge
    high: np.ndarray  # (E,) behind the last
    first: np.ndarray  # (S,) the edge of a sequence's first token
    last: np.ndarray  # (S,) and of its last

    @classmethod
    def of(cls, roots: np.ndarray, sequences: Sequence[Tokens]) -> "_Edges":
        lengths = np.array([len(sequence) for sequence in sequences])
        exists = np.arange(lengths.max()) < lengths[:, None]
        tokens = np.full(exists.shape, -1, dtype=np.int64)
        tokens[exists] = [token for sequence in sequences for token in sequence]
        differs = np.ones(tokens.shape, dtype=bool)  # from the sequence before, in this token or an earlier one
        differs[1:] = tokens[1:] != tokens[:-1]
        differs[1:, 0] |= roots[1:] != roots[:-1]
        starts = (np.logical_or.accumulate(differs, axis=1) & exists).T
        edge = np.cumsum(starts.ravel()).reshape(starts.shape) - 1  # (L, S)
        levels, low = np.nonzero(starts)
        parents = np.where(levels == 0, roots[low], _NUM_ROOTS + edge[levels - 1, low])
        high = low + np.bincount(edge[exists.T], minlength=len(low))
        last = edge[lengths - 1, np.arange(len(lengths))]
        return cls(parents, tokens[low, levels], low, high, edge[0], last)


class _ItemSets:
    """The distinct sets of two or more items that nodes stand for, numbered as columns behind the items' own."""

    def __init__(self, leaf_items: np.ndarray, num_items: int):
        self._leaf_items, self._num_items = leaf_items, num_items
        self._columns: dict[bytes, int] = {}
        self.ranges: list[tuple[int, int]] = []

    def column(self, low: int, high: int) -> int:
        """Return the column of the items of these leaves."""
        if high - low == 1:
            return int(self._leaf_items[low])
        column = self._columns.setdefault(
            np.sort(self._leaf_items[low:high]).tobytes(), self._num_items + 1 + len(self.ranges)
        )
        if column > self._num_items + len(self.ranges):
            self.ranges.append((low, high))
        return column

    def item_columns(self) -> np.ndarray:
        """Return the columns of every item, filled up with the one that is always open."""
        columns: list[list[int]] = [[item] for item in range(self._num_items)]
        for column, (low, high) in enumerate(self.ranges, start=self._num_items + 1):
            for item in self._leaf_items[low:high].tolist():
                columns[item].append(column)
        filled = np.full((self._num_items, max(map(len, columns))), self._num_items)
        for item, own in enumerate(columns):
            filled[item, : len(own)] = own
        return filled


class ConstraintState:
    """Where each of B lists stands in the trie, and what is still open to it; it lives on the trie's device.

    Rows can be given other lists (`put`), and every method takes the rows that it is about, by default all.
    """

    def __init__(
        self, trie: CatalogTrie, requests: Sequence[ListRequest], vocab_size: int, capacity: int | None = None
    ):
        """Begin these lists for scores of `vocab_size` tokens, in the first of `capacity` rows (by default as many).

        Raises `InputError` for lists that cannot be written.
        """
        if vocab_size < trie.vocab_size:
            raise InputError(f"vocabulary of {vocab_size} tokens: the catalog needs {trie.vocab_size}; take its model")
        device, size, num_layers = trie.tokens.device, capacity or len(requests), len(trie.first_tokens)
        self.vocab_size = vocab_size
        self._trie = trie
        self._degrees = trie.pointers.diff()  # 0 at a leaf
        self._rows = torch.arange(size, device=device)
        self._nodes = torch.full((size,), DONE, device=device)
        self._remaining = torch.zeros(size, dtype=torch.int64, device=device)
        self._all_counts = torch.cat(
            [torch.ones_like(trie.lengths), trie.sizes.new_tensor([_ALWAYS]), trie.sizes]
        ).int()
        self._counts = self._all_counts.repeat(size, 1)
        self._taken = self._counts.new_tensor(-1)
        # 0 for the first tokens of what is open, else -inf: to add is far quicker than to choose by booleans. A row of
        # these for each list and layer; the last one is that of lists which stand below a root.
        self._all_bias = torch.full((num_layers, vocab_size), -torch.inf, device=device)
        self._all_bias.scatter_(1, trie.first_tokens, 0.0)
        self._below = size * num_layers
        self._bias = self._all_bias.new_empty((self._below + 1, vocab_size))
        self._bias[self._below] = -torch.inf
        self._bias_rows = torch.arange(self._below, device=device).view(size, num_layers)
        layers = trie.layers[torch.arange(len(self._degrees), device=device).clamp(max=_NUM_ROOTS)]
        self._layers = torch.where(layers >= 0, layers, self._below)  # of a node
        self.lost = torch.zeros(size, dtype=torch.bool, device=device)  # rows that were given a token not allowed
        self.put(self._rows[: len(requests)], requests)

    @property
    def nbytes(self) -> int:
        """The memory that the state takes, in bytes."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, torch.Tensor))

    def put(self, rows: torch.Tensor, requests: Sequence[ListRequest]) -> None:
        """Begin these lists in these rows."""
        trie = self._trie
        is_open = trie.open_items(requests).to(rows.device)
        length = torch.tensor([request.length for request in requests], dtype=torch.int64, device=rows.device)
        self._counts[rows] = self._all_counts
        self._bias[self._bias_rows[rows]] = self._all_bias
        row, items = (~is_open).nonzero(as_tuple=True)
        self._close(rows[row], items)
        self._remaining[rows] = length
        self._nodes[rows] = trie.roots[0, length.clamp(max=2)]
        self.lost[rows] = False

    def allowed(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Return which tokens may come next, as booleans (B, vocab_size); EOS and pad behind a list's end."""
        size = len(self._rows if rows is None else rows)
        return self.mask_(torch.zeros(size, self.vocab_size, device=self._rows.device), rows) == 0

    def mask_(self, scores: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Set the scores (B, vocab_size), in place, to -inf at every token that may not come next; return them."""
        rows, nodes = (self._rows, self._nodes) if rows is None else (rows, self._nodes[rows])
        layers = self._layers[nodes]
        below = (layers == self._below).nonzero().squeeze(1)
        at, tokens = self._open_edges(rows[below], nodes[below])
        at = below[at]
        kept = scores[at, tokens]
        if rows is self._rows and len(self._all_bias) == 1:  # the usual case: the bias need not be gathered
            scores.add_(self._bias[: self._below])
            scores[below] = -torch.inf
        else:
            scores.add_(self._bias[(self._bias_rows[:, 0][rows] + layers).clamp_(max=self._below)])
        scores[at, tokens] = kept
        return scores

    def _open_edges(self, rows: torch.Tensor, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens that lead on from the nodes to an open item: the index of the node, and the token."""
        trie, degrees = self._trie, self._degrees[nodes]
        nth = torch.arange(int(degrees.max()) if len(rows) else 0, device=rows.device)
        edges = (trie.pointers[nodes][:, None] + nth).clamp_(max=len(trie.tokens) - 1)
        is_open = self._counts[rows[:, None], trie.columns[_NUM_ROOTS:][edges]] > 0
        at, which = (is_open & (nth < degrees[:, None])).nonzero(as_tuple=True)
        return at, trie.tokens[edges[at, which]]

    def advance(self, tokens: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Move each row on by its token (B,); a token that was not allowed ends the list and marks the row as lost."""
        if rows is None:  # the usual case, without a copy
            self._nodes, lost = self._step(self._nodes, tokens, self._rows)
            self.lost |= lost
        else:
            self._nodes[rows], lost = self._step(self._nodes[rows], tokens, rows)
            self.lost[rows] |= lost

    def _step(self, nodes: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the nodes behind the tokens, and which rows were given one that was not allowed."""
        trie = self._trie
        keys = (nodes << 32).add_(tokens)
        edges = torch.searchsorted(trie.keys, keys).clamp_(max=len(trie.keys) - 1)
        nodes = edges + _NUM_ROOTS
        closed = self._counts[rows, trie.columns[nodes]] <= 0
        lost = (trie.keys[edges] != keys).logical_or_(closed)
        items = trie.items[nodes].masked_fill_(lost, trie.num_items)
        written = (items < trie.num_items).nonzero().squeeze(1)
        if len(written):
            of_items = rows[written]
            remaining = self._remaining[of_items] - 1
            self._remaining[of_items] = remaining
            self._close(of_items, items[written])
            nodes[written] = trie.roots[1, remaining.clamp_(max=2)]
        ends = self._degrees[nodes] == 0
        return nodes.masked_fill_(lost.logical_or(ends), DONE), lost

    def _close(self, rows: torch.Tensor, items: torch.Tensor) -> None:
        """Take each item out of what is open to its row; a row may stand several times."""
        trie = self._trie
        self._counts.index_put_((rows[:, None], trie.item_columns[items]), self._taken, accumulate=True)
        left = self._counts[rows, trie.first_columns[:, items]] > 0
        self._bias[self._bias_rows[rows].T, trie.first_tokens[:, items]] = torch.where(left, 0.0, -torch.inf)


def allowed_tokens(
    trie: CatalogTrie,
    requests: Sequence[ListRequest],
    completion_ids: torch.Tensor,
    mask: torch.Tensor,
    vocab_size: int,
) -> torch.Tensor:
    """Return what was allowed at each token of the completions (B, T) that these requests led to.

    The mask (B, T) holds the tokens written, EOS included: from the left, without gaps. Where it is false all are
    allowed. Raises `ValueError` naming the first row with a token that was not.

    Shape: (B, T, vocab_size), booleans.
    """
    state = ConstraintState(trie, requests, vocab_size)
    allowed = torch.ones(*completion_ids.shape, vocab_size, dtype=torch.bool, device=completion_ids.device)
    for t in range(completion_ids.shape[1]):
        rows = mask[:, t].nonzero().squeeze(1)
        allowed[rows, t] = state.allowed(rows)
        state.advance(completion_ids[rows, t], rows)
    if state.lost.any():
        row = int(state.lost.nonzero()[0])
        raise ValueError(f"completion {row}: it holds a token that its request does not allow; give the same request")
    return allowed
