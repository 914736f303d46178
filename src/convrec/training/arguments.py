"""The trainer arguments that SFT and Rank-GRPO share."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from convrec.project.device import pick_device


def shared_arguments(
    folder: Path,
    seed: int,
    device: str,
    bf16: bool,
    *,
    learning_rate: float,
    lr_scheduler_type: str,
    warmup_steps: float,
    adam_beta1: float,
    adam_beta2: float,
    weight_decay: float,
    max_grad_norm: float,
    per_device_train_batch_size: int,
    gradient_accumulation_steps: int,
    logging_steps: int,
    save_steps: int,
    save_total_limit: int,
    gradient_checkpointing: bool,
) -> dict[str, Any]:
    """Return the keyword arguments of a TRL config for the project's optimisation parameters.

    `save_steps` and `logging_steps` count optimiser steps. TRL's reporting integrations are off, because the project's
    callbacks record the metrics. bf16 applies on GPUs only.
    """
    on_cpu = pick_device(device) == "cpu"
    return {
        "output_dir": str(folder),
        "seed": seed,
        "use_cpu": on_cpu,
        "bf16": bf16 and torch.cuda.is_available() and not on_cpu,
        "learning_rate": learning_rate,
        "lr_scheduler_type": lr_scheduler_type,
        "warmup_steps": warmup_steps,
        "adam_beta1": adam_beta1,
        "adam_beta2": adam_beta2,
        "weight_decay": weight_decay,
        "max_grad_norm": max_grad_norm,
        "per_device_train_batch_size": per_device_train_batch_size,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "gradient_checkpointing": gradient_checkpointing,
        "logging_steps": logging_steps,
        "logging_nan_inf_filter": False,  # the filter would replace a loss that is not finite by an earlier one
        "save_steps": save_steps,
        "save_total_limit": save_total_limit,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu,
    }


def unnumber_cpu(arguments: TrainingArguments) -> None:
    """Set the device of a CPU training to `cpu`, so that it can be resumed in several processes.

    Accelerate gives each of several processes the device `cpu:0`, onto which torch cannot load an optimiser.
    """
    if arguments.device.type == "cpu":
        vars(arguments)["_setup_devices"] = torch.device("cpu")  # the cache of the property `device`
