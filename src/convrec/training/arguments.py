"""The trainer arguments that SFT and Rank-GRPO share."""

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from convrec.project.device import pick_device

CHECKPOINTS_KEPT = 3  # of a training: the newest, and the best


def shared_arguments(folder: Path, seed: int, device: str, bf16: bool, **optimization: Any) -> dict[str, Any]:
    """Return the keyword arguments of a TRL config; `optimization` holds those of the training.

    TRL's reporting integrations are off, because the project's callbacks record the metrics. bf16 applies on GPUs only.
    """
    on_cpu = pick_device(device) == "cpu"
    return {
        "output_dir": str(folder),
        "seed": seed,
        "use_cpu": on_cpu,
        "bf16": bf16 and torch.cuda.is_available() and not on_cpu,
        "logging_nan_inf_filter": False,  # the filter would replace a loss that is not finite by an earlier one
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu,
        "adam_beta1": 0.9,
        "adam_beta2": 0.99,
        "max_grad_norm": 1.0,
        "save_total_limit": CHECKPOINTS_KEPT,
        **optimization,
    }


def unnumber_cpu(arguments: TrainingArguments) -> None:
    """Set the device of a CPU training to `cpu`, so that it can be resumed in several processes.

    Accelerate gives each of several processes the device `cpu:0`, onto which torch cannot load an optimiser.
    """
    if arguments.device.type == "cpu":
        vars(arguments)["_setup_devices"] = torch.device("cpu")  # the cache of the property `device`
