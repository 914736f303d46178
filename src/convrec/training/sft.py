"""Supervised training: TRL's SFTTrainer with the project's checkpoints and callbacks."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from convrec.generation.finite import FiniteTrainer
from convrec.training.arguments import shared_arguments, unnumber_cpu
from convrec.training.checkpoints import CompletionCallback, has_ended, prepare_folder
from convrec.training.cpu_head import use_cpu_head
from convrec.training.padding_free import drop_padding
from convrec.training.stopping import StopCallback, stoppable

logger = logging.getLogger(__name__)


class _Trainer(FiniteTrainer, SFTTrainer):
    """TRL's trainer; it stops at the first loss or gradient that is not finite."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # the next epoch's order does not depend on it
            return super().evaluate(*args, **kwargs)


def train_sft(
    model: Any,
    tokenizer: Any,
    dataset: Dataset,
    folder: Path,
    callbacks: Sequence[TrainerCallback],
    *,
    num_train_epochs: float,
    checkpoint_step: int | None,
    max_length: int,
    seed: int,
    device: str,
    bf16: bool,
    peft_config: Any = None,
    validation: Dataset | None = None,
    **optimization: Any,
) -> Path:
    """Train a model by the negative log-likelihood of the labels; return the folder it is saved in.

    `dataset` has the columns `input_ids` and `labels` (the loss covers labels other than -100) or `text` (the loss
    covers the whole text). `max_length` counts tokens. The learning-rate schedule spans `num_train_epochs`; training
    stops at optimiser step `checkpoint_step`, if given. The loss on `validation` is measured after each epoch
    (`eval_loss`); it does not change the training. Training resumes from the newest checkpoint in `folder`. Batches
    have no padding if the model's attention allows it (`drop_padding`), which changes the model in place but not its
    results.
    `optimization` holds the fields of `config.Optimization`.

    Raises `Stopped` after a signal, and `NotFiniteError` if the loss or its gradient is not finite.
    """
    arguments = SFTConfig(
        num_train_epochs=num_train_epochs,
        max_length=max_length,
        eval_strategy="no" if validation is None else "epoch",
        per_device_eval_batch_size=optimization["per_device_train_batch_size"],
        prediction_loss_only=True,
        **shared_arguments(folder, seed, device, bf16, **optimization),
    )
    unnumber_cpu(arguments)
    if arguments.device.type == "cpu":
        use_cpu_head()
    checkpoint = prepare_folder(folder)
    stop = [StopCallback(checkpoint_step)] if checkpoint_step else []
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        eval_dataset=validation,
        processing_class=tokenizer,
        callbacks=[*callbacks, *stop, CompletionCallback()],
        peft_config=peft_config,
    )
    head = model.get_output_embeddings()
    if not hasattr(head, "bias"):  # PEFT's wrapper of item rows; TRL's head reads it, and `lora_config` refuses one
        head.bias = None
    # TRL's own option would not allow `max_length`.
    collator: Any = trainer.data_collator
    hindrance = (
        "one process uses several GPUs, which split batches by rows" if arguments.n_gpu > 1 else drop_padding(model)
    )
    collator.padding_free = hindrance is None
    if hindrance is not None:
        logger.info("batches are padded: %s", hindrance)
    trainer.remove_callback(PrinterCallback)  # the history callback logs the progress
    if checkpoint is not None and has_ended(checkpoint, checkpoint_step):
        return checkpoint
    with stoppable(trainer):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trainer.save_model(str(folder / "final"))  # in every process: the weights may be partitioned
    return folder / "final"
