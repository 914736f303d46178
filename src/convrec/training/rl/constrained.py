"""The catalog constraint in rollouts, and in the log-probabilities of their tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.data.wish_reader import wishes_of
from convrec.generation.allowed_tokens import AllowedTokens, allowed_tokens
from convrec.generation.lists import keep_wishes
from convrec.generation.trie import CatalogTrie, ListRequest, LogWeights


class RolloutConstraint:
    """What the lists of each prompt are: `num_ranks` items, none of them seen, that keep its wishes; guided or not.

    The constraint depends on the prompt only, so the distribution that was sampled can be recomputed from a prompt and
    its completion. It keeps the prompts of the last rollouts while they are trained on.
    """

    def __init__(self, catalog: Catalog, trie: CatalogTrie, num_ranks: int):
        self.trie, self.num_ranks = trie, num_ranks
        self.catalog = catalog
        self._requests: dict[bytes, ListRequest] = {}  # by prompt
        self._allowed: dict[tuple[bytes, bytes], AllowedTokens] = {}  # by prompt and completion

    def begin(self, prompts: Sequence[Sequence[int]], rows: Iterable[Row]) -> None:
        """Replace the prompts by these; equal ones share the union of seen titles and wishes, and the least weights.

        A row has `seen_titles`, perhaps `guided_items` with their `log_weights`, and the `conversation`, whose wishes
        the lists keep. Raises `InputError` if too few items are left for a prompt.
        """
        requests: dict[bytes, ListRequest] = {}
        said: dict[bytes, list[Any]] = {}
        for prompt, row in zip(prompts, rows, strict=True):
            key, banned = _key(prompt), self.catalog.indices_of_titles(row["seen_titles"])
            items, logs = row.get("guided_items") or (), row.get("log_weights") or ()
            weights = LogWeights(np.array(items, np.int32), np.array(logs, np.float32))
            if key in requests:  # of two people, whose own likes are left out of one guidance each
                others = requests[key].log_weights
                both, mine, theirs = np.intersect1d(weights.items, others.items, return_indices=True)
                weights = LogWeights(both, np.minimum(weights.logs[mine], others.logs[theirs]))
                banned |= set(requests[key].banned)
            requests[key] = ListRequest(self.num_ranks, banned, log_weights=weights)
            if (conversation := row.get("conversation")) and conversation not in said.setdefault(key, []):
                said[key].append(conversation)
        for key, conversations in said.items():
            wishes = [wish for own in conversations for wish in wishes_of({"messages": own}, self.catalog)]
            requests[key] = keep_wishes(requests[key], wishes, len(self.catalog))[0]
        self._requests = requests
        self._allowed = {}
        self.trie.check(self._requests.values())

    def request(self, prompt: Sequence[int]) -> ListRequest:
        """Return the length and the banned items of a prompt's lists."""
        return self._requests[_key(prompt)]

    def allowed(self, rows: np.ndarray, width: int) -> AllowedTokens:
        """Return which tokens are allowed at each position of each completion.

        The log-probabilities of one completion are needed up to three times; what is allowed is found once.

        Shape: rows (2, B, L), from `on_host`: prompts padded on the left, completions of `width` on the right.
        """
        (ids, mask), split = (rows[0], rows[1] == 1), rows.shape[2] - width
        keys = [
            (_key(row[:split][is_own[:split]]), _key(row[split:][is_own[split:]]))
            for row, is_own in zip(ids, mask, strict=True)
        ]
        new = [i for i, key in enumerate(keys) if key not in self._allowed]
        if new:
            requests = [self._requests[keys[i][0]] for i in new]
            allowed = allowed_tokens(self.trie, requests, ids[new, split:], mask[new, split:])
            self._allowed |= {keys[i]: allowed.rows(slice(row, row + 1)) for row, i in enumerate(new)}
        return AllowedTokens.stack([self._allowed[key] for key in keys], width)


def on_host(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> np.ndarray:
    """Return ids and mask (B, L) as one array, by one transfer, which waits for the device's work. Shape: (2, B, L)."""
    both: np.ndarray = torch.stack([input_ids, attention_mask.to(input_ids.dtype)]).cpu().numpy()
    return both


def _key(tokens: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray(tokens, np.int64).tobytes()
