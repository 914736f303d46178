"""Padding-free batches for models with PyTorch's SDPA attention, without flash attention."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from convrec.generation.full_attention import SDPA, attention_hindrance, text_config, with_attention

_NAME = "sdpa_by_sequence"


def attend_by_sequence(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return causal attention within each sequence of a flattened batch: no token attends to another sequence.

    Only the attention call is padded. Its rows are the sequences, with padding on the right, which the causal mask
    hides from all other tokens. Projections, MLPs and norms process no padding.

    Shape: query (1, heads, T, D), key and value (1, kv heads, T, D); cu_seq_lens_q (B + 1,), the boundaries of the
    B sequences in T, as TRL's padding-free collator gives them; returns (1, T, heads, D). Raises `ValueError` without
    these boundaries.
    """
    if cu_seq_lens_q is None or max_length_q is None:
        raise ValueError(f"attention {_NAME!r} accepts only padding-free batches; set the model's attention to 'sdpa'")
    lengths, num_tokens = cu_seq_lens_q.diff(), query.shape[2]
    rows = torch.arange(len(lengths), device=query.device)
    shifts = (rows * max_length_q - cu_seq_lens_q[:-1]).repeat_interleave(lengths, output_size=num_tokens)
    places = torch.arange(num_tokens, device=query.device) + shifts

    def by_row(tokens: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = tokens.shape
        padded = tokens.new_zeros(len(rows) * max_length_q, heads, size)
        padded = padded.index_copy(0, places, tokens[0].transpose(0, 1))
        return padded.view(len(rows), max_length_q, heads, size).transpose(1, 2)

    output, _ = sdpa_attention_forward(module, by_row(query), by_row(key), by_row(value), None, **kwargs)
    return output.flatten(0, 1).index_select(0, places)[None], None


AttentionInterface.register(_NAME, attend_by_sequence)


def drop_padding(model: PreTrainedModel) -> str | None:
    """Change a model in place so that it accepts padding-free batches, and no others; return None.

    This needs full causal attention by SDPA in all layers. Otherwise the model stays unchanged, and the reason is
    returned.
    """
    hindrance = attention_hindrance(model)
    if hindrance is None:
        model.set_attn_implementation(_NAME)
    return hindrance


def with_padding(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Let a model accept padded batches in the block, whatever `drop_padding` has changed."""
    own = text_config(model)._attn_implementation
    return with_attention(model, SDPA if own == _NAME else own)
