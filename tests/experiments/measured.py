"""Real steps of SFT and Rank-GRPO with rows of full length, and the parameters that say so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM

from convrec.config.params import Params, load_params
from convrec.experiments.memory import with_settings
from tests.models.small import save
from tests.project import ROOT
from tests.rl.tiny import same_rows, tiny_trainer
from tests.training.tiny_sft import TOKENIZER, train_tiny

GROUP = 8


class Batch(NamedTuple):
    """Tokens of prompts and of lists, rows of a micro-batch, and micro-batches of a step."""

    prompt: int
    completion: int
    rows: int
    steps: int = 1

    def params(self, device: str) -> Params:
        """Return the parameters of trainings with it, in bfloat16 on a GPU."""
        settings: dict[str, Any] = {"common.device": device, "common.max_prompt_length": self.prompt}
        settings |= {"base_model.dtype": "bfloat16" if device == "cuda" else "float32"}
        settings |= {"sft.max_length": self.prompt + self.completion, "rank_grpo.num_generations": GROUP}
        settings |= {"rank_grpo.max_completion_length": self.completion, "rank_grpo.constrained": False}
        for stage in ("sft", "rank_grpo"):
            settings[f"{stage}.per_device_train_batch_size"] = self.rows
            settings[f"{stage}.gradient_accumulation_steps"] = self.steps
        return with_settings(load_params(ROOT / "params.yaml"), settings)

    def options(self) -> dict[str, int]:
        """Return the options of a trainer."""
        return {"per_device_train_batch_size": self.rows, "gradient_accumulation_steps": self.steps}


def train_sft_on(config: Any, folder: Path, batch: Batch, device: str) -> None:
    """Take two steps of SFT from random weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    ids = torch.randint(5, 300, (2 * batch.rows * batch.steps, batch.prompt + batch.completion)).tolist()
    labels = [[-100] * batch.prompt + row[batch.prompt :] for row in ids]
    rows = Dataset.from_dict({"input_ids": ids, "labels": labels})
    own = {"num_train_epochs": 1, "max_length": batch.prompt + batch.completion, "save_steps": 100}
    train_tiny(model, folder / "sft", rows=rows, device=device, bf16=device == "cuda", **own, **batch.options())


def train_rank_grpo_on(config: Any, folder: Path, batch: Batch, device: str) -> None:
    """Take two steps of Rank-GRPO from random weights, with given rollouts and a reference."""
    torch.manual_seed(0)
    save(folder / "model", AutoModelForCausalLM.from_config(config), TOKENIZER)
    penalty = batch.params(device).common.repetition_penalty
    own = {"gradient_checkpointing": False, "max_completion_length": batch.completion, "beta": 0.01}
    own |= {"repetition_penalty": penalty, "use_cpu": device == "cpu", "bf16": device == "cuda"}
    trl = {"rollout_func": _rollouts(batch)}
    tiny_trainer(folder / "model", folder / "rl", 2, rows=same_rows(), trl=trl, **own, **batch.options()).train()


def _rollouts(batch: Batch) -> Callable[[list, Any], dict[str, Any]]:
    """Return completions with all the tokens that are allowed, for prompts of the same length."""

    def rollouts(prompts: list, trainer: Any) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(0)
        completions = torch.randint(5, 300, (len(prompts), batch.completion), generator=draw).tolist()
        asked = torch.randint(5, 300, (len(prompts) // GROUP, batch.prompt), generator=draw)
        return {
            "prompt_ids": asked.repeat_interleave(GROUP, 0).tolist(),
            "completion_ids": completions,
            "logprobs": None,
        }

    return rollouts
