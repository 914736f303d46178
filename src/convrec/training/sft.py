"""Supervised training: TRL's SFTTrainer with the project's targets, checkpoints and callbacks."""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from convrec.generation.finite import FiniteTrainer
from convrec.project.errors import InputError
from convrec.training.arguments import shared_arguments, unnumber_cpu
from convrec.training.callbacks import ValidationCallback
from convrec.training.checkpoints import CompletionCallback, best_step, has_ended, prepare_folder
from convrec.training.cpu_head import use_cpu_head
from convrec.training.padding_free import drop_padding
from convrec.training.stopping import StopCallback, stoppable
from convrec.training.targets import IGNORED, ListCollator, target_loss

logger = logging.getLogger(__name__)

# A warmup below 1 is a share of all steps.
_SCHEDULE: dict[str, Any] = {"lr_scheduler_type": "cosine", "warmup_steps": 0.05, "logging_steps": 25}


class _Trainer(FiniteTrainer, SFTTrainer):
    """TRL's trainer; it stops at the first loss or gradient that is not finite."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return TRL's loss, or that of the batch's targets: the mean over the learned tokens of all processes."""
        targets = {name: inputs.pop(name) for name in list(inputs) if name.startswith("target_")}
        if not targets:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        rows, places = (inputs.pop("labels")[:, 1:] != IGNORED).nonzero(as_tuple=True)
        kept, columns = places.unique(return_inverse=True)
        logits = model(**inputs, use_cache=False, logits_to_keep=kept).logits
        loss = target_loss(logits[rows, columns], targets)
        if num_items_in_batch is None:
            return loss / len(rows)
        return loss / num_items_in_batch * self.accelerator.num_processes  # DDP averages over the processes


class _EpochCallback(TrainerCallback):
    """Tells the lists which epoch begins, also where a training is resumed within it."""

    def __init__(self, lists: ListCollator):
        self._lists = lists

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._lists.epoch = int(state.epoch)


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
    lists: ListCollator | None = None,
    validate: Callable[[SFTTrainer, int], ValidationCallback] | None = None,
    **optimization: Any,
) -> Path:
    """Train a model; return the folder it is saved in.

    With `lists`, these write the rows of `dataset` and say what is learned (`ListCollator`). Without, it has the
    columns `input_ids` and `labels` (the loss covers labels other than -100) or `text` (the loss covers the whole
    text). `max_length` counts tokens. The learning-rate schedule spans `num_train_epochs`; training stops at optimiser
    step `checkpoint_step`, if given. With `validate`, which makes a callback for a trainer and the steps of an epoch,
    the checkpoint of the best validation is returned. Training resumes from the newest checkpoint in `folder`. Batches
    have no padding if the model's attention allows it (`drop_padding`), which changes the model in place but not its
    results.
    `optimization` holds the fields of `config.Optimization`, and other arguments, which replace `_SCHEDULE`. The
    loss is logged every `logging_steps` steps, in a short training at least twenty times.

    Raises `Stopped` after a signal, and `NotFiniteError` if the loss or its gradient is not finite.
    """
    own: dict[str, Any] = {"remove_unused_columns": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
    arguments = SFTConfig(
        num_train_epochs=num_train_epochs,
        max_length=max_length,
        **shared_arguments(folder, seed, device, bf16, **_SCHEDULE | optimization),
        **({} if lists is None else own),
    )
    steps = len(dataset) * num_train_epochs / arguments.train_batch_size / arguments.gradient_accumulation_steps
    arguments.logging_steps = min(arguments.logging_steps, max(1, int(steps / arguments.world_size) // 20))
    unnumber_cpu(arguments)
    if arguments.device.type == "cpu":
        use_cpu_head()
    if lists is not None and arguments.n_gpu > 1:
        raise InputError(
            f"sft.launch: one process sees {arguments.n_gpu} GPUs; set it to configs/accelerate/ddp.yaml, or "
            "CUDA_VISIBLE_DEVICES to one of them"
        )
    checkpoint = prepare_folder(folder)
    stop = [StopCallback(checkpoint_step)] if checkpoint_step else []
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=dataset,
        processing_class=tokenizer,
        data_collator=lists,
        callbacks=[*callbacks, *stop],
        peft_config=peft_config,
    )
    head = model.get_output_embeddings()
    if not hasattr(head, "bias"):  # PEFT's wrapper of item rows; TRL's head reads it, and `lora_config` refuses one
        head.bias = None
    hindrance = (
        "one process uses several GPUs, which split batches by rows" if arguments.n_gpu > 1 else drop_padding(model)
    )
    collator: Any = trainer.data_collator
    if lists is not None:
        collator = lists.collate = DataCollatorForLanguageModeling(tokenizer.pad_token_id)
        trainer.add_callback(_EpochCallback(lists))
    collator.padding_free = hindrance is None  # TRL's own option would not allow `max_length`
    if hindrance is not None:
        logger.info("batches are padded: %s", hindrance)
    trainer.remove_callback(PrinterCallback)  # the history callback logs the progress
    if validate is not None:
        batches = len(trainer.get_train_dataloader())
        trainer.add_callback(validate(trainer, math.ceil(batches / arguments.gradient_accumulation_steps)))
    trainer.add_callback(CompletionCallback())
    is_trained = checkpoint is not None and has_ended(checkpoint, checkpoint_step)
    if not is_trained:
        with stoppable(trainer):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        trainer.accelerator.wait_for_everyone()  # until the first process has completed the last checkpoint
    if validate is not None and (best := best_step(folder)):
        return folder / f"checkpoint-{best}"
    if checkpoint is not None and is_trained:
        return checkpoint
    trainer.save_model(str(folder / "final"))  # in every process: the weights may be partitioned
    return folder / "final"
