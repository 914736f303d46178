"""Checks for inf and NaN: a training stops at the first such loss or gradient, and no such model is written."""

import math
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer

from convrec.project.errors import InputError


class NotFiniteError(InputError, FloatingPointError):
    """A training has diverged: its loss, gradient or weights are inf or NaN."""


class FiniteTrainer(Trainer):
    """A trainer that raises `NotFiniteError` at the first loss or gradient that is not finite, in all processes.

    Nothing of the step that failed is saved.
    """

    args: Any
    accelerator: Any

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        # Gathered, so that all processes stop at the same step: one that waits for another would hang.
        self._check_finite("loss", float(self.accelerator.gather(loss.detach().float().view(1)).mean()))
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self._check_finite("gradient's norm", float(norm or 0.0))
        return norm

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise NotFiniteError(
                f"the {what} is {value} after step {self.state.global_step}, so training stops before anything of it "
                f"is saved; the checkpoints in {self.args.output_dir} are good. Lower learning_rate "
                f"({self.args.learning_rate}), or use bf16 or fp32"
            )


def check_weights(model: torch.nn.Module, folder: Path) -> None:
    """Raise `NotFiniteError` where a weight of the model that is to be written to `folder` is inf or NaN."""
    bad = [name for name, weight in model.state_dict().items() if not torch.isfinite(weight).all()]
    if bad:
        raise NotFiniteError(
            f"{folder}: not written, because {len(bad)} tensors of the model hold inf or NaN, {bad[0]} first; lower "
            "learning_rate of its training, or take another model"
        )
