"""Supervised training: TRL's SFTTrainer with the project's checkpoints and callbacks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from convrec.training.arguments import shared_arguments
from convrec.training.callbacks import StopCallback
from convrec.training.checkpoints import last_checkpoint


def train_sft(
    model: Any,
    tokenizer: Any,
    dataset: Dataset,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
    *,
    num_epochs: float,
    checkpoint_step: int | None,
    max_length: int,
    seed: int,
    device: str,
    bf16: bool,
    **optimization: Any,
) -> Any:
    """Train a model (in place, or a path) by the negative log-likelihood of the completions, and return it.

    `dataset` has `prompt` and `completion` (the loss is the completion's) or `text` (the loss is the whole text's).
    The schedule is that of `num_epochs`, which `checkpoint_step` may cut short. The training resumes from the newest
    checkpoint in `folder`. `optimization` holds the fields of `config.Optimization`.
    """
    arguments = SFTConfig(
        num_train_epochs=num_epochs,
        max_length=max_length,
        **shared_arguments(folder, seed, device, bf16, **optimization),
    )
    stop = [StopCallback(checkpoint_step)] if checkpoint_step else []
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        processing_class=tokenizer,
        callbacks=[*callbacks, *stop],
    )
    trainer.remove_callback(PrinterCallback)  # the history callback tells the progress
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    return trainer.model
