"""A batch's state in the trie of the catalog on the model's device: a step of decoding is a few kernels, and no wait.

`ConstraintState` is the same on the CPU, where rows can be given other lists. Here a row chooses among the edges of its
node, so that what is computed depends on the largest number of edges, not on the vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch

from convrec.generation.trie import DONE, NUM_ROOTS, TOKEN, CatalogTrie, ListRequest

_LARGEST = 2**24  # numbers in a tensor of the state


class DeviceState:
    """The position of each of B lists in the trie, as tensors on one device that are changed in place.

    A row holds the leaves of its closed items, and the weights of its guided ones. What is open below the edges of a
    node is counted from these at every step, so that no error adds up.
    """

    def __init__(self, trie: CatalogTrie, requests: Sequence[ListRequest], device: torch.device):
        """Begin these lists. `trie.check` has accepted the requests."""
        num_edges, num_leaves = len(trie.keys), len(trie.first_edges)
        nodes = np.arange(len(trie.pointers) - 1)
        last = trie.pointers[NUM_ROOTS:-1] == trie.pointers[NUM_ROOTS + 1 :]  # edges that lead to no other
        item = np.where(last, trie.items[trie.spans[:, 0]], trie.num_items)
        starts, lengths, ends, tokens = trie.runs

        def tensor(values: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, np.int64)).to(device)

        self._pointers, self._spans = tensor(trie.pointers), tensor(trie.node_spans(nodes))
        self._tokens, self._child_keys = tensor(trie.keys & TOKEN), tensor(trie.child_keys)
        self._below = tensor(np.where(trie.spans[:, 0] == num_leaves, 1, trie.num_below))  # an edge of DONE leads on
        self._starts, self._lengths, self._run_tokens = map(tensor, (starts, lengths, tokens))
        self._items = tensor(item[ends])
        self._next = tensor(np.where(last[ends], DONE, ends + NUM_ROOTS))
        self._leaves = tensor(np.concatenate([trie.leaves, np.full_like(trie.leaves[:1], num_leaves)]))
        self._roots = tensor(trie.roots[1])
        self.vocab_size, self.is_one_pass = trie.vocab_size, trie.is_one_pass
        self._num_items, self._num_leaves, self._last_edge = trie.num_items, num_leaves, num_edges - 1
        self._slots = torch.arange(int(np.diff(trie.pointers).max()), device=device)
        length = np.array([request.length for request in requests])
        self.nodes, self._remaining = tensor(trie.roots[0, np.minimum(length, 2)]), tensor(length)
        each = trie.leaves.shape[1]
        room = each * (int(length.max()) + 1)
        found = {id(own): _leaves(trie, own) for own in distinct(requests)}
        closed, guided, weights = zip(*(found[id(own)] for own in requests), strict=True)
        self._closed = tensor(_padded(closed, num_leaves, room))
        self._free = self._closed.shape[1] - room + tensor(np.arange(each)).expand(len(length), -1).clone()
        self._guided = tensor(_padded(guided, num_leaves))
        self._weights = torch.from_numpy(_padded(weights, 0.0)).to(device)

    @staticmethod
    def fits(trie: CatalogTrie, requests: Sequence[ListRequest]) -> bool:
        """Return whether the tensors of these lists are of a reasonable size."""
        numbers = (len(trie.closed(own)) + own.length + len(own.log_weights) for own in distinct(requests))
        most = max(numbers) * trie.leaves.shape[1]
        return len(requests) * max(most, int(np.diff(trie.pointers).max())) <= _LARGEST

    def choose(self, scores: torch.Tensor, temperature: float | None = None) -> torch.Tensor:
        """Return the edge that each row takes: sampled at a temperature, or else the likeliest.

        Guidance is added to the scores, as `ConstraintState.mask_` does. Shape: scores (B, vocab_size); edges (B,).
        """
        first, end = self._pointers[self.nodes], self._pointers[self.nodes + 1]
        edges = first[:, None] + self._slots
        is_edge, edges = edges < end[:, None], edges.clamp(max=self._last_edge)
        number = self._below[edges] - self._sums(self._closed, first, torch.ones_like(self._closed))
        values = scores.gather(1, self._tokens[edges])
        if self._guided.shape[1]:
            mass = self._sums(self._guided, first, self._weights)
            guided = self._sums(self._guided, first, torch.ones_like(self._guided))
            values = values + torch.log((mass + (number - guided)) / number).float().to(values.dtype)
        values = torch.where(is_edge & (number > 0), values, -torch.inf)
        if temperature is None:
            return first + values.argmax(1)
        shares = (values / temperature).softmax(1)
        return first + (shares / torch.empty_like(shares).exponential_()).argmax(1)  # as `multinomial`, without a wait

    def _sums(self, leaves: torch.Tensor, first: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return the sums of what these leaves have, below each edge of the rows' nodes. Shape: leaves (B, n)."""
        low, high = self._spans[self.nodes].split(1, dim=1)
        keys = self.nodes[:, None] * (self._num_leaves + 1) + leaves
        slots = torch.searchsorted(self._child_keys, keys, right=True) - 1 - first[:, None]
        size = len(self._slots)
        slots = slots.masked_fill((leaves < low) | (leaves >= high), size)
        return values.new_zeros(len(leaves), size + 1).scatter_add_(1, slots, values)[:, :size]

    def jump(self, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Move each row on by its edge and by all that alone can follow.

        Return where these tokens begin (see `tokens`), and how many they are; ended rows have none. Shape: all (B,).
        """
        is_active = self.nodes != DONE
        items = self._items[edges].masked_fill(~is_active, self._num_items)
        is_item = items < self._num_items
        leaves = self._leaves[items]
        self._closed.scatter_(1, self._free, leaves)
        self._free += is_item[:, None] * leaves.shape[1]
        if self._guided.shape[1]:
            gone = (self._guided[:, :, None] == leaves[:, None]).any(2)
            self._guided.masked_fill_(gone, self._num_leaves)
        self._remaining -= is_item.long()
        after = torch.where(is_item, self._roots[self._remaining.clamp(max=2)], self._next[edges])
        self.nodes.copy_(torch.where(is_active, after, DONE))
        return self._starts[edges], self._lengths[edges] * is_active

    def tokens(self, starts: torch.Tensor, lengths: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens of a jump, aligned on the right, and which places hold one. Shape: (B, width)."""
        places = torch.arange(width, device=lengths.device) - (width - lengths[:, None])
        held = places >= 0
        return self._run_tokens[(starts[:, None] + places).clamp(0, len(self._run_tokens) - 1)], held


def distinct(requests: Sequence[ListRequest]) -> list[ListRequest]:
    """Return the requests without repetitions of one: the rows of a group share it."""
    return list({id(own): own for own in requests}.values())


def _leaves(trie: CatalogTrie, request: ListRequest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the leaves of a request's closed items, and those of its guided open items with their weights."""
    closed = trie.leaves[trie.closed(request)].ravel()
    items, values = trie.weighted(request)
    guided = trie.leaves[items].ravel()
    is_open = ~np.isin(guided, closed)
    return closed, guided[is_open], values.repeat(trie.leaves.shape[1])[is_open]


def _padded(rows: Sequence[np.ndarray], filler: float, room: int = 0) -> np.ndarray:
    """Return rows of several lengths as one array with `room` for more. Shape: (B, longest + room)."""
    width = max(map(len, rows)) + room
    return np.stack([np.pad(row, (0, width - len(row)), constant_values=filler) for row in rows])
