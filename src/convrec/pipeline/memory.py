"""Settings with which a stage needs less memory."""

from contextlib import suppress
from typing import Any

from convrec.project.config.params import Params, parse_params
from convrec.project.config.training import Training
from convrec.project.errors import InputError


def last_remedy(stage: str) -> str:
    """Return what to change if memory does not suffice for a stage with any batch size."""
    if stage == "evidence":
        return "give the machine more"
    if stage == "guidance":
        return "give the machine more, or set guidance.fit_prompts to 0, which switches guidance off"
    shards = "shard the model over GPUs (launch: configs/accelerate/zero3.yaml)"
    return f"lower common.max_prompt_length, set lora, or {shards}"


def out_of_memory_message(params: Params, stage: str, reason: str) -> str:
    """Return the error of a stage that ran out of memory, with the settings to change."""
    settings = smaller_settings(params, stage)
    changes = " and ".join(f"{name} to {str(value).lower()}" for name, value in (settings or {}).items())
    remedy = f"set {changes}, which trains the same" if changes else last_remedy(stage)
    return f"{stage}: out of memory ({reason[:200]}); {remedy}; `convrec preflight` finds settings that fit"


def smaller_settings(params: Params, stage: str) -> dict[str, Any] | None:
    """Return settings of a stage, by dotted name, with which it needs less memory; None if there are none left.

    The micro-batch is divided by the smallest number that the parameters allow, and accumulation multiplied by it,
    which keeps the effective batch and so the update. After that, activations are computed again in the backward pass.
    """
    if stage in ("guidance", "evaluate"):
        size = params.evaluate.batch_size
        return {"evaluate.batch_size": size // 2} if size > 1 else None
    if stage not in ("sft", "rank_grpo"):
        return None
    config: Training = getattr(params, stage)
    size, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
    for factor in (number for number in range(2, size + 1) if size % number == 0):
        smaller = {
            f"{stage}.per_device_train_batch_size": size // factor,
            f"{stage}.gradient_accumulation_steps": steps * factor,
        }
        with suppress(InputError):
            with_settings(params, smaller)  # dpo needs whole groups
            return smaller
    return None if config.gradient_checkpointing else {f"{stage}.gradient_checkpointing": True}


def with_settings(params: Params, settings: dict[str, Any], where: str = "params.yaml") -> Params:
    """Return the parameters with some changed, by dotted name. Raises `InputError`, which begins with `where`."""
    raw = params.model_dump()
    for name, value in settings.items():
        *sections, field = name.split(".")
        target = raw
        for section in sections:
            target = target[section]
        target[field] = value
    return parse_params(raw, where)
