"""The catalog constraint in rollouts, and in the log-probabilities of their tokens."""

from collections.abc import Iterable, Sequence

import torch

from convrec.data.catalog import Catalog
from convrec.generation.constraint import CatalogTrie, ListRequest, allowed_tokens
from convrec.generation.processors import CatalogConstraint


class RolloutConstraint:
    """The items that the lists of each prompt may contain: `num_ranks` items of the catalog, none of them seen.

    The constraint depends on the prompt only, so the distribution that was sampled can be recomputed from a prompt and
    its completion. It keeps the prompts of the last rollouts while they are trained on.
    """

    def __init__(self, catalog: Catalog, trie: CatalogTrie, num_ranks: int):
        self.trie, self.num_ranks = trie, num_ranks
        self.catalog = catalog
        self._requests: dict[tuple[int, ...], ListRequest] = {}

    def begin(self, prompts: Sequence[Sequence[int]], seen_titles: Iterable[Iterable[str]]) -> None:
        """Replace the prompts by these; equal prompts share the union of their seen titles.

        Raises `InputError` if too few items are left for a prompt.
        """
        banned: dict[tuple[int, ...], set[int]] = {}
        for prompt, titles in zip(prompts, seen_titles, strict=True):
            banned.setdefault(tuple(prompt), set()).update(self.catalog.indices_of_titles(titles))
        self._requests = {prompt: ListRequest(self.num_ranks, items) for prompt, items in banned.items()}
        self.trie.check(self._requests.values())

    def request(self, prompt: Sequence[int]) -> ListRequest:
        """Return the length and the banned items of a prompt's lists."""
        return self._requests[tuple(prompt)]

    def processor(self, prompts: Sequence[Sequence[int]]) -> CatalogConstraint:
        """Return the logits processor for one call of `generate` with these prompts."""
        return CatalogConstraint(self.trie, [self.request(prompt) for prompt in prompts])

    def allowed(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, width: int, vocab: int) -> torch.Tensor:
        """Return which tokens are allowed at each position of each completion, as booleans (B, width, vocab).

        Shape: input_ids, attention_mask (B, L): prompts padded on the left, completions of `width` on the right.
        """
        split, is_token = input_ids.shape[1] - width, attention_mask.bool()
        rows = zip(input_ids[:, :split].tolist(), is_token[:, :split].tolist(), strict=True)
        prompts = [tuple(token for token, is_own in zip(*row, strict=True) if is_own) for row in rows]
        requests = [self._requests[prompt] for prompt in prompts]
        return allowed_tokens(self.trie, requests, input_ids[:, split:], is_token[:, split:], vocab)
