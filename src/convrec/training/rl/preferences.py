"""Preferences between lists: the loss of DPO and S-DPO, and the preferred list of a prompt."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from convrec.data.catalog import Catalog
from convrec.data.matching import Truth
from convrec.generation.line_tokens import tokenize_lines
from convrec.generation.prompt_tokens import generation_prompt


def softmax_dpo_loss(log_ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss of S-DPO (arXiv 2406.09215), a scalar: the mean over P prompts of

        -log σ( -log Σ_d exp( β (ρ_d - ρ_p) ) ),    ρ = log π(list | prompt) - log π_ref(list | prompt),

    for the preferred list p and the K rejected lists d. With one rejected list it is the loss of DPO (arXiv 2305.18290,
    equation 7).

    Shape: log_ratios (P, 1 + K), the ρ of each prompt's lists in nats, the preferred list first.
    """
    margins = beta * (log_ratios[:, 1:] - log_ratios[:, :1])
    return -torch.nn.functional.logsigmoid(-margins.logsumexp(dim=1)).mean()


class PreferredLists:
    """Makes a preferred list from one that the model wrote: the items that the user liked, then the model's items.

    The model's items keep their order. The number of items stays the same, so the last ones are dropped. Liked items
    that are not in the catalog, or are banned for the prompt, are left out.
    """

    def __init__(self, catalog: Catalog, tokenizer: Any):
        """Raise `InputError` for a catalog line that the tokenizer cannot write."""
        self._catalog, self._tokenizer = catalog, tokenizer
        self._lines = tokenize_lines([str(item) for item in catalog.items], tokenizer, generation_prompt(tokenizer))

    def items(self, written: Sequence[int], groundtruth: Iterable[Any], banned: Collection[int]) -> list[int]:
        """Return the items of the preferred list; `written` are the model's items, distinct and not banned."""
        liked = (self._catalog.find(*Truth.of(truth)) for truth in groundtruth)
        wanted = [item for item in liked if item is not None and item not in banned]
        return list(dict.fromkeys([*wanted, *written]))[: len(written)]

    def tokens(self, items: Sequence[int]) -> list[int]:
        """Return the token ids of a list of these items, tokenized as under the catalog constraint, with EOS."""
        *others, last = items
        ids: list[int] = []
        for item in others:
            ids += self._lines[item].later_before_newline if ids else self._lines[item].first_before_newline
        ids += self._lines[last].later_at_end if ids else self._lines[last].first_at_end
        return [*ids, self._tokenizer.eos_token_id]

    def prefer(self, completion: Sequence[int], groundtruth: Iterable[Any], banned: Collection[int]) -> list[int]:
        """Return the token ids of the list preferred to a completion, whose lines must be catalog lines."""
        text = self._tokenizer.decode(completion, skip_special_tokens=True)
        written = [item for item in self._catalog.indices_of_lines(text.split("\n")) if item is not None]
        return self.tokens(self.items(written, groundtruth, banned))
