"""A tiny model, and SFT on it in eight steps with a checkpoint each: `python -m tests.training.tiny_sft`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Qwen2ForCausalLM, TrainerCallback

from convrec.training.callbacks import HistoryCallback, read_history
from convrec.training.embedded import make_model, train_tokenizer
from convrec.training.launch import end_processes, rank_process
from convrec.training.sft import train_sft
from tests.generation.small import sizes

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
    usual: dict[str, Any] = {"tokenizer": TOKENIZER, "num_train_epochs": 2, "max_length": 24, "seed": 0}
    usual |= {"device": "cpu", "bf16": False, "gradient_checkpointing": False, "logging_steps": 1, "save_steps": 1}
    usual |= {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_steps": 0.0, "weight_decay": 0.0}
    usual |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1}
    rows = rows or Dataset.from_dict({"text": [f"{number} films please" for number in range(16)]})
    return train_sft(model, dataset=rows, folder=folder, callbacks=callbacks, checkpoint_step=stop, **usual | options)


def train_history(model: Qwen2ForCausalLM, folder: Path, *steps: int, **options: Any) -> list[dict[str, float]]:
    """Train as `train_tiny` does, and return the history of the folder's training."""
    path = folder / "history.jsonl"
    train_tiny(model, folder, *steps, callbacks=[HistoryCallback(path, lambda *_: None)], **options)
    return read_history(path)


def main() -> None:
    """Train in this process to a step, resuming what is there; write the history and the final weights."""
    from tests.training.rl.tiny import skip_compiling  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--options", type=json.loads, default={})
    args = parser.parse_args()
    skip_compiling()
    train_history(make_tiny(), args.output, args.steps, **args.options)
    end_processes()


if __name__ == "__main__":
    with rank_process():
        main()
