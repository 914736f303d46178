"""Batches of completions of ragged prompts."""

from collections.abc import Sequence

import torch


def ragged_groups(
    sizes: Sequence[int], lengths: Sequence[int], width: int, vocab: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and mask of groups of `sizes` completions of prompts of `lengths` tokens, in a mixed order.

    Shape: (B, max(lengths) + width), padded on the left and on the right.
    """
    draw = torch.Generator().manual_seed(0)
    rows, masks = [], []
    for size, length in zip(sizes, lengths, strict=True):
        prompt = torch.randint(3, vocab, (length,), generator=draw)
        for _ in range(size):
            written = int(torch.randint(1, width + 1, (), generator=draw))
            completion = torch.randint(3, vocab, (width,), generator=draw)
            rows.append(torch.cat([torch.zeros(max(lengths) - length, dtype=torch.long), prompt, completion]))
            kept = [0] * (max(lengths) - length) + [1] * (length + written) + [0] * (width - written)
            masks.append(torch.tensor(kept))
    order = torch.randperm(len(rows), generator=draw)
    return torch.stack(rows)[order], torch.stack(masks)[order]
