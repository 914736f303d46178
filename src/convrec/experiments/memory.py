"""Settings with which a stage needs less memory and trains the same."""

from typing import Any

from convrec.config.params import Params
from convrec.config.training import Training

LESS_MEMORY = (
    "lower common.max_prompt_length, set lora, or shard the model over GPUs (launch: configs/accelerate/zero3.yaml)"
)


def out_of_memory_message(params: Params, stage: str, reason: str) -> str:
    """Return the error of a stage that ran out of memory, with the settings to change."""
    settings = smaller_settings(params, stage)
    changes = " and ".join(f"{name} to {str(value).lower()}" for name, value in (settings or {}).items())
    remedy = f"set {changes}, which trains the same" if changes else LESS_MEMORY
    return f"{stage}: out of memory ({reason[:200]}); {remedy}; `convrec preflight` finds settings that fit"


def smaller_settings(params: Params, stage: str) -> dict[str, Any] | None:
    """Return settings of a stage, by dotted name, with which it needs less memory; None if there are none left.

    The micro-batch is halved and accumulation doubled, which keeps the effective batch and so the update. At size 1,
    activations are computed again in the backward pass.
    """
    if stage == "evaluate":
        size = params.evaluate.batch_size
        return {"evaluate.batch_size": size // 2} if size > 1 else None
    if stage not in ("sft", "rank_grpo"):
        return None
    config: Training = getattr(params, stage)
    size, steps = config.per_device_train_batch_size, config.gradient_accumulation_steps
    if size > 1:
        factor = 2 if size % 2 == 0 else size  # an odd size has no half
        return {
            f"{stage}.per_device_train_batch_size": size // factor,
            f"{stage}.gradient_accumulation_steps": steps * factor,
        }
    return None if config.gradient_checkpointing else {f"{stage}.gradient_checkpointing": True}
