"""Batches of completions of ragged prompts, small models of several kinds, and what a training reads of them."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

WIDTH, VOCAB = 5, 50
_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"vocab_size": VOCAB, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}


def small_model(kind: str = "qwen2", **options: Any) -> Any:
    """Return a model of an architecture; the weights are the same each time."""
    torch.manual_seed(0)
    own = _GPT2 if kind == "gpt2" else {}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **_SIZES | own | options))


def scores_and_gradients(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    """Return log-probabilities, entropies, and the gradient of each trained weight."""
    model.zero_grad()
    output = model(input_ids=ids, attention_mask=mask, completion_width=WIDTH)
    weights = torch.randn(output.log_probs.shape, generator=torch.Generator().manual_seed(2))
    (output.log_probs * weights).sum().backward()
    return [output.log_probs.detach(), output.entropy, *(w.grad for w in model.parameters() if w.requires_grad)]


def ragged_groups(
    sizes: Sequence[int], lengths: Sequence[int], width: int = WIDTH, vocab: int = VOCAB
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
