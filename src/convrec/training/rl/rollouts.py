"""Groups of completions from transformers: each distinct prompt is prefilled once, then continued G times."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig

from convrec.generation.jump_forward import can_jump, distinct_runs, pad_prompts, prefill, write_lists
from convrec.generation.processors import CatalogConstraint, only_settings
from convrec.training.rl.constrained import RolloutConstraint


@torch.no_grad()
def generate_groups(
    model: Any,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    constraint: RolloutConstraint | None = None,
) -> list[list[int]]:
    """Return the token ids of one completion for each prompt, in order, each up to and including its first EOS.

    Consecutive equal prompts are prefilled once, and their key-value cache is repeated.
    """
    requests = [constraint.request(prompt) for prompt in prompts] if constraint else []
    if constraint is not None and can_jump(model):
        temperature = (config.temperature or 1.0) if config.do_sample else None
        penalty = config.repetition_penalty or 1.0
        lists = write_lists(model, prompts, constraint.trie, requests, penalty=penalty, temperature=temperature)
        return [tokens[: config.max_new_tokens] for tokens in lists]
    distinct, index = distinct_runs(prompts)
    ids, mask = pad_prompts(distinct, model.device)
    width = ids.shape[1]
    rows, cache = torch.tensor(index, device=model.device), None
    with only_settings(model, config):
        if width > 1 and len(distinct) < len(prompts):
            cache = DynamicCache(config=model.config)
            prefill(model, ids, mask, cache)
            cache.batch_select_indices(rows)
        output = model.generate(
            input_ids=ids[rows],
            attention_mask=mask[rows],
            past_key_values=cache,
            generation_config=config,
            logits_processor=[CatalogConstraint(constraint.trie, requests)] if constraint else [],
        )
    completions = output[:, width:]
    ends = torch.isin(completions, torch.tensor(config.eos_token_id, device=model.device))
    kept = (ends.cumsum(1) - ends.long()) == 0  # up to and including the first EOS
    return [row[keep].tolist() for row, keep in zip(completions.cpu(), kept.cpu(), strict=True)]
