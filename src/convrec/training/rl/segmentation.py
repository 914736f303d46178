"""Assigns each completion token to a rank of the list."""

from typing import Any

import torch


def newline_counts(tokenizer: Any) -> torch.Tensor:
    """Return the number of newlines in the text of each token.

    Shape: (vocab,), int64; 0 for ids without a token.
    """
    size = max(tokenizer.get_vocab().values()) + 1
    texts = tokenizer.batch_decode([[token] for token in range(size)], skip_special_tokens=True)
    return torch.tensor([text.count("\n") for text in texts], dtype=torch.long)


def segment_ranks(
    completion_ids: torch.Tensor, completion_mask: torch.Tensor, newline_counts: torch.Tensor
) -> torch.Tensor:
    """Return the 0-based rank of each token, which may exceed N - 1; -1 on padding.

    A token's rank is the number of newlines in the tokens before it, so a newline belongs to the item that it ends.

    Shape: completion_ids, completion_mask (B, T); newline_counts (vocab,); returns (B, T), int64.
    """
    padding = completion_mask == 0
    table = newline_counts.to(completion_ids.device)
    counts = table.index_select(0, completion_ids.reshape(-1)).view_as(completion_ids).masked_fill_(padding, 0)
    return counts.cumsum(dim=1).sub_(counts).masked_fill_(padding, -1)


def list_ends(
    ranks: torch.Tensor, is_eos: torch.Tensor, num_ranks: int, early_penalty: float, exact_reward: float
) -> torch.Tensor:
    """Return the advantage of each list's EOS.

    It is `early_penalty` before the last rank, `exact_reward` at the last rank, and 0 after it or without EOS.

    Shape: ranks (0-based), is_eos (B, T); returns (B,), float32.
    """
    early, exact = is_eos & (ranks < num_ranks - 1), is_eos & (ranks == num_ranks - 1)
    return early.any(1) * early_penalty + exact.any(1) * exact_reward


def attach_eos(ranks: torch.Tensor, is_eos: torch.Tensor) -> torch.Tensor:
    """Return the ranks with every EOS moved to the rank of the token before it.

    An EOS then belongs to the last item even if it follows a newline. An EOS at the first position gets rank 0.

    Shape: ranks, is_eos and the result (B, T).
    """
    before = torch.cat([torch.zeros_like(ranks[:, :1]), ranks[:, :-1]], dim=1)
    return torch.where(is_eos & (ranks >= 0), before, ranks)
