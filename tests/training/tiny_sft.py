"""A tiny model, and SFT on it in eight steps with a checkpoint each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Qwen2ForCausalLM, TrainerCallback

from convrec.training.embedded import make_model, train_tokenizer
from convrec.training.sft import train_sft
from tests.models.small import sizes

TOKENIZER = train_tokenizer(["a film please"] * 5, [], 300)
SIZES = sizes(16, 16, heads=2)
STEPS = 8


def make_tiny() -> Qwen2ForCausalLM:
    """Return the untrained model."""
    return make_model(TOKENIZER, **SIZES, seed=0)


def train_tiny(
    model: Qwen2ForCausalLM,
    folder: Path,
    stop: int | None = None,
    rows: Dataset | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **options: Any,
) -> Path:
    """Train in `folder`, resuming what is there, to the last step or to `stop`; `options` are those of `train_sft`."""
    usual: dict[str, Any] = {
        "num_train_epochs": 2,
        "max_length": 24,
        "seed": 0,
        "device": "cpu",
        "bf16": False,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "warmup_steps": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "logging_steps": 1,
        "save_steps": 1,
        "save_total_limit": 4,
        "gradient_checkpointing": False,
    }
    rows = rows or Dataset.from_dict({"text": [f"{number} films please" for number in range(16)]})
    return train_sft(model, TOKENIZER, rows, folder, list(callbacks), checkpoint_step=stop, **usual | options)
