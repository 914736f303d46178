"""Micro-batches of rollouts with little padding: groups stay together, prompts are sorted by length."""

from typing import Any

import torch

_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "ranks",
    "eos",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
)


def begins_group(prompt_ids: torch.Tensor, prompt_mask: torch.Tensor) -> torch.Tensor:
    """Return for each row whether its prompt differs from the row before; true for the first row.

    Shape: prompt_ids, prompt_mask (B, P); returns (B,), bool.
    """
    prompts = prompt_ids.masked_fill(prompt_mask == 0, -1)
    return torch.cat([prompts.new_ones(1, dtype=torch.bool), (prompts[1:] != prompts[:-1]).any(1)])


def with_signal(batch: dict[str, Any], least: int) -> dict[str, Any]:
    """Return the batch without groups whose advantages are all 0: their lists have equal rewards and teach nothing.

    Tokens past rank N have an advantage, too. At least `least` groups are kept.

    Shape: tensors of the batch (B, ...), `advantages` (B, N), `eos_advantages` (B,).
    """
    groups = begins_group(batch["prompt_ids"], batch["prompt_mask"]).cumsum(0) - 1
    overflows = (batch["ranks"] >= batch["advantages"].shape[1]).any(1)
    has_signal = (batch["advantages"] != 0).any(1) | (batch["eos_advantages"] != 0) | overflows
    teaches = groups.new_zeros(int(groups[-1]) + 1).index_add(0, groups, has_signal.to(groups.dtype)) > 0
    others = (~teaches).nonzero()[:, 0]
    teaches[others[: max(0, least - int(teaches.sum()))]] = True
    if teaches.all():
        return batch
    rows = teaches[groups].nonzero()[:, 0]
    return {name: _rows(value, rows) for name, value in batch.items()}


def micro_batches(batch: dict[str, Any], number: int, steps: int) -> list[dict[str, Any]]:
    """Split one process's rollouts into `number` micro-batches of about equal size, for `steps` optimiser steps.

    Groups are assigned to steps at random. Within a step they are sorted by the length of their prompts. Each
    micro-batch is cut to its longest prompt and completion. A group is split only if it does not fit in one
    micro-batch.

    Shape: tensors of `batch` (B, ...), of a micro-batch about (B / number, ...); scalars are copied.
    """
    groups = begins_group(batch["prompt_ids"], batch["prompt_mask"]).cumsum(0) - 1
    chance = torch.randperm(int(groups[-1]) + 1).to(groups.device)
    order = chance[groups].argsort(stable=True)
    lengths = batch["prompt_mask"].sum(1)
    order = torch.cat([rows[lengths[rows].argsort(stable=True)] for rows in order.tensor_split(steps)])
    parts = order.tensor_split(number)
    return [trim_padding({name: _rows(value, rows) for name, value in batch.items()}) for rows in parts]


def _rows(value: Any, rows: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return value[rows] if value.ndim else value
    return [value[i] for i in rows.tolist()] if isinstance(value, list) else value


def trim_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch without columns that are padding in every row: left of the prompts, right of the completions.

    Shape: prompt tensors (B, P) to (B, P'), completion tensors (B, T) to (B, T'); others are unchanged.
    """
    first = int(batch["prompt_mask"].any(0).int().argmax())
    width = max(1, int(batch["completion_mask"].any(0).sum()))
    sides = {name: slice(first, None) for name in _PROMPT} | {name: slice(width) for name in _COMPLETION}
    return {
        name: value[:, sides[name]] if name in sides and value is not None else value for name, value in batch.items()
    }
