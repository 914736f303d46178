"""Groups of completions from transformers: each distinct prompt is prefilled once, then continued G times."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig

from convrec.generation.jump_forward import can_jump, distinct_runs, pad_prompts, prefill, write_lists
from convrec.generation.processors import only_settings
from convrec.training.rl.constrained import RolloutConstraint


def beam_config(config: GenerationConfig, num_generations: int) -> GenerationConfig:
    """Return the configuration for beam search: the G completions of a prompt are its G best beams."""
    config = copy.deepcopy(config)
    config.do_sample, config.temperature, config.top_p, config.top_k = False, None, None, None
    config.num_beams = config.num_return_sequences = num_generations
    return config


@torch.no_grad()
def generate_groups(
    model: Any,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    constraint: RolloutConstraint | None = None,
) -> list[list[int]]:
    """Return the token ids of one completion for each prompt, in order, each up to and including its first EOS.

    Consecutive equal prompts are prefilled once, and their key-value cache is repeated. With
    `config.num_return_sequences` = G above 1 (`beam_config`), each G consecutive completions are the beams of one
    search.

    Raises `ValueError` if the prompts are not whole groups of beams.
    """
    beams = config.num_return_sequences or 1
    if beams == 1 and constraint is not None and can_jump(model):
        requests = [constraint.request(prompt) for prompt in prompts]
        temperature = (config.temperature or 1.0) if config.do_sample else None
        penalty = config.repetition_penalty or 1.0
        lists = write_lists(model, prompts, constraint.trie, requests, penalty=penalty, temperature=temperature)
        return [tokens[: config.max_new_tokens] for tokens in lists]
    distinct, index = distinct_runs(prompts)
    if beams > 1:
        distinct = [list(prompt) for prompt in prompts[::beams]]
        if [prompt for prompt in distinct for _ in range(beams)] != [list(prompt) for prompt in prompts]:
            raise ValueError(
                f"the {len(prompts)} prompts of this process are not whole groups of {beams}; make the completions of "
                "a process a multiple of num_generations"
            )
    ids, mask = pad_prompts(distinct, model.device)
    width = ids.shape[1]
    asked = distinct if beams > 1 else prompts
    decoding = {"generation_config": config, "logits_processor": [constraint.processor(asked)] if constraint else []}
    with only_settings(model, config):
        if beams > 1:
            output = model.generate(input_ids=ids, attention_mask=mask, **decoding)
        else:
            rows, cache = torch.tensor(index, device=model.device), None
            if width > 1 and len(distinct) < len(prompts):
                cache = DynamicCache(config=model.config)
                prefill(model, ids, mask, cache)
                cache.batch_select_indices(rows)
            output = model.generate(input_ids=ids[rows], attention_mask=mask[rows], past_key_values=cache, **decoding)
    completions = output[:, width:]
    ends = torch.isin(completions, torch.tensor(config.eos_token_id, device=model.device))
    kept = (ends.cumsum(1) - ends.long()) == 0  # up to and including the first EOS
    return [row[keep].tolist() for row, keep in zip(completions.cpu(), kept.cpu(), strict=True)]
