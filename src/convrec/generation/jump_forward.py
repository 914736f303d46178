"""Constrained lists by jump-forward decoding: one forward pass for a token that is chosen and those that must follow.

At most nodes of a catalog's trie only one token can follow: the rest of a title, the newline behind it, the EOS behind
the last line. The constraint gives it probability 1, so its logits are not needed: it is written at once, and read in
the same forward pass as the chosen token before it. The lists have the same distribution as those that are decoded
token by token. Related: the compressed automata of SGLang (Zheng et al., arXiv 2312.07104).
"""

import inspect
from collections.abc import Sequence
from threading import current_thread, main_thread
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor
from transformers.integrations import is_deepspeed_zero3_enabled

from convrec.generation.constraint import ConstraintState
from convrec.generation.device_lists import can_place, write_on_device
from convrec.generation.device_state import DeviceState, distinct
from convrec.generation.full_attention import order_hindrance
from convrec.generation.processors import without_adapters
from convrec.generation.trie import CatalogTrie, ListRequest

_ROOM = 128  # tokens


class _RoomyLayer(DynamicLayer):
    """A layer of a key-value cache with room for more tokens, so that a step copies its own tokens only."""

    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add the new tokens' states and return all. Shape: (B, heads, tokens, D)."""
        start = self.get_seq_length()
        new, end = (key_states, value_states), start + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < end:
            keys, values = (own.new_empty(*own.shape[:-2], end + _ROOM, own.shape[-1]) for own in new)
            if self.keys is not None and self.values is not None:
                keys[..., :start, :], values[..., :start, :] = self.keys, self.values
            self._buffers = keys, values
            self.is_initialized = True
        for buffer, own in zip(self._buffers, new, strict=True):
            buffer[..., start:end, :] = own
        keys, values = (buffer[..., :end, :] for buffer in self._buffers)
        self.keys, self.values = keys, values
        return keys, values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep these rows."""
        super().batch_select_indices(indices)
        self._buffers = None


def roomy_cache() -> Cache:
    """Return an empty key-value cache for models with full attention, to which a step copies its own tokens only."""
    return Cache(layer_class_to_replicate=_RoomyLayer)


def distinct_runs(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Return the prompts without consecutive repetitions, and the index of each given prompt among them."""
    distinct: list[list[int]] = []
    index = []
    for prompt in prompts:
        if not distinct or distinct[-1] != list(prompt):
            distinct.append(list(prompt))
        index.append(len(distinct) - 1)
    return distinct, index


def pad_prompts(prompts: Sequence[Sequence[int]], device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of prompts, padded on the left, and which of them are no padding. Shape: (B, L).

    Padding repeats a prompt's first token: a repetition penalty also reads padding, so it must not hold tokens that the
    prompt does not have.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[*prompt[:1]] * (width - len(prompt)) + [*prompt] for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    return ids, mask


def prefill(model: Any, ids: torch.Tensor, mask: torch.Tensor, cache: Cache) -> None:
    """Read all but the last token of padded prompts into a cache. Shape: ids, mask (B, L)."""
    if ids.shape[1] > 1:
        model(
            input_ids=ids[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, :-1],  # as in `generate`
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )


def can_jump(model: Any) -> bool:
    """Return whether a model reads several tokens at a time, with gaps between those of shorter rows.

    If processes hold parts of the weights, each needs the others for a forward pass, and they would need equally many.
    """
    base = without_adapters(model)
    taken = inspect.signature(base.forward).parameters.keys()
    is_partitioned = is_deepspeed_zero3_enabled() or is_fsdp_managed_module(base)
    needed = {"position_ids", "past_key_values", "logits_to_keep"}
    return needed <= taken and not is_partitioned and order_hindrance(base) is None


def _is_device(device: torch.device) -> bool:
    return device.type == "cuda"


@torch.no_grad()
def write_lists(
    model: Any,
    prompts: Sequence[Sequence[int]],
    trie: CatalogTrie,
    requests: Sequence[ListRequest],
    *,
    penalty: float = 1.0,
    temperature: float | None = None,
) -> list[list[int]]:
    """Return the tokens of the list that each prompt's request asks for, EOS included.

    Tokens are sampled at a `temperature`, by default the likeliest are taken. As in transformers, the repetition
    penalty comes first, then the guidance of the request, then the temperature. Consecutive equal prompts are read
    once. Raises `InputError` for a request that cannot be met.
    """
    trie.check(distinct(requests))
    unequal, index = distinct_runs(prompts)
    ids, mask = pad_prompts(unequal, model.device)
    rows = torch.tensor(index, device=model.device)
    cache = roomy_cache()
    prefill(model, ids, mask, cache)
    if _is_device(model.device) and len(cache) and can_place(model) and DeviceState.fits(trie, requests):
        state_there = DeviceState(trie, requests, model.device)
        longest = trie.longest(max(request.length for request in requests))
        # A capture bears no other work of the process on the GPU, as in a service; adapters of tokens wait for it.
        use_graphs = ids.is_cuda and current_thread() is main_thread() and not hasattr(model, "peft_config")
        how: dict[str, Any] = {"penalty": penalty, "temperature": temperature, "use_graphs": use_graphs}
        return write_on_device(model, ids, mask, rows, cache, state_there, longest, **how)
    cache.batch_select_indices(rows)
    ids, mask = ids[rows], mask[rows]
    positions = mask.sum(dim=1)  # of the next token
    block, block_positions = ids[:, -1:], positions[:, None] - 1
    penalize = RepetitionPenaltyLogitsProcessor(penalty) if penalty != 1 else None
    state: ConstraintState | None = None
    lists: list[list[int]] = [[] for _ in prompts]
    while state is None or not state.is_done:
        if state is None or not trie.is_one_pass:
            output = model(
                input_ids=block,
                attention_mask=mask,
                position_ids=block_positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            scores = output.logits[:, -1].to(torch.promote_types(output.logits.dtype, torch.float32), copy=True)
            scores = scores if penalize is None else penalize(ids, scores).contiguous()
        state = state or ConstraintState(trie, requests, scores.shape[1])
        scores = state.mask_(scores)
        if temperature is None:
            chosen = scores.argmax(dim=-1)
        else:
            chosen = (scores / temperature).softmax(dim=-1).multinomial(1)[:, 0]
        written = state.jump(chosen.tolist())
        for own, tokens in zip(lists, written, strict=True):
            own += tokens
        block, added = _right_aligned(written, ids[:, 0])
        ids, mask = torch.cat([ids, block], dim=1), torch.cat([mask, added], dim=1)
        block_positions = (positions[:, None] + added.cumsum(dim=1) - 1).clamp(min=0)
        positions = positions + added.sum(dim=1)
    return lists


def _right_aligned(written: Sequence[Sequence[int]], filler: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the new tokens of each row, with a token of the row before those of shorter rows, and which are new.

    The last token of each row then stands last, so that only its logits are needed. Shape: filler (B,); (B, W).
    """
    width = max(1, *map(len, written))
    new = np.zeros((2, len(written), width), np.int64)
    for row, tokens in enumerate(written):
        if tokens:
            new[0, row, width - len(tokens) :] = tokens
            new[1, row, width - len(tokens) :] = 1
    tokens, added = torch.from_numpy(new).to(filler.device)  # one transfer
    return torch.where(added == 1, tokens, filler[:, None]), added
