"""Groups of completions from transformers: each distinct prompt is prefilled once, then continued G times."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig

from convrec.generation.processors import only_settings
from convrec.training.rl.constrained import RolloutConstraint


def distinct_runs(prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Return the prompts without consecutive repetitions, and the index of each given prompt among them."""
    distinct: list[list[int]] = []
    index = []
    for prompt in prompts:
        if not distinct or distinct[-1] != list(prompt):
            distinct.append(list(prompt))
        index.append(len(distinct) - 1)
    return distinct, index


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
    distinct, index = distinct_runs(prompts)
    if beams > 1:
        distinct = [list(prompt) for prompt in prompts[::beams]]
        if [prompt for prompt in distinct for _ in range(beams)] != [list(prompt) for prompt in prompts]:
            raise ValueError(
                f"the {len(prompts)} prompts of this process are not whole groups of {beams}; make the completions of "
                "a process a multiple of num_generations"
            )
    width, device = max(map(len, distinct)), model.device
    # Padding repeats the prompt's first token: transformers' repetition penalty also reads padding, so it must not
    # contain tokens that the prompt does not have.
    ids = torch.tensor([prompt[:1] * (width - len(prompt)) + prompt for prompt in distinct], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in distinct], device=device)
    asked = distinct if beams > 1 else prompts
    decoding = {"generation_config": config, "logits_processor": [constraint.processor(asked)] if constraint else []}
    if beams > 1:
        with only_settings(model, config):
            output = model.generate(input_ids=ids, attention_mask=mask, **decoding)
    else:
        rows = torch.tensor(index, device=device)
        cache = None
        if width > 1 and len(distinct) < len(prompts):
            cache = DynamicCache(config=model.config)
            positions = (mask.cumsum(1) - 1).clamp(min=0)  # as in `generate`
            model(
                input_ids=ids[:, :-1],
                attention_mask=mask[:, :-1],
                position_ids=positions[:, :-1],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache.batch_select_indices(rows)
        with only_settings(model, config):
            output = model.generate(input_ids=ids[rows], attention_mask=mask[rows], past_key_values=cache, **decoding)
    completions = output[:, width:]
    ends = torch.isin(completions, torch.tensor(config.eos_token_id, device=device))
    kept = (ends.cumsum(1) - ends.long()) == 0  # up to and including the first EOS
    return [row[keep].tolist() for row, keep in zip(completions.cpu(), kept.cpu(), strict=True)]
