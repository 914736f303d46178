"""The head that TRL's models have on a CPU: it scores the trained positions alone, and their logits at once."""

from typing import Any

import torch
from trl.trainer import utils as trl_utils

MAX_LOGITS = 2**25  # that are held at a time: 128 MiB in float32; where there are more, TRL folds them tile by tile

_TILES = trl_utils._ChunkedLogProbFunction
_OUTPUTS = {"log_probs", "entropy", "is_top1"}


class WholeLogits:
    """Takes the place of TRL's autograd function, whose backward pass makes the logits again."""

    @staticmethod
    def apply(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: tuple[str, ...],
    ) -> tuple[torch.Tensor | None, ...]:
        """Return log-probability, entropy, two that are not asked for, and whether the target is the likeliest: (T,).

        Shape: hidden (T, H), weight (V, H), targets (T,).
        """
        is_spread = hasattr(weight, "ds_id")  # by ZeRO-3: TRL gathers it again for the backward pass
        is_other = softcap is not None or not _OUTPUTS.issuperset(outputs)
        if is_spread or is_other or len(targets) * len(weight) > MAX_LOGITS:
            tiles: Any = _TILES.apply(hidden, weight, bias, targets, temperature, chunk_size, softcap, scale, outputs)
            return tiles
        logits = torch.nn.functional.linear(hidden, weight, bias)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        factor = scale / temperature
        log_probs = (logits if factor == 1 else logits * factor).log_softmax(dim=-1)
        with torch.no_grad():
            entropy = -(log_probs.exp() * log_probs).sum(dim=-1) if "entropy" in outputs else None
            is_top1 = log_probs.argmax(dim=-1) == targets if "is_top1" in outputs else None
        return log_probs.gather(1, targets[:, None]).squeeze(1), entropy, None, None, is_top1


def use_cpu_head() -> None:
    """Have the heads of all models that TRL trains in this process be these."""
    # TRL asks this only to decide whether its head leaves out the positions without a label (prompts, padding). It
    # scores them where there is no Triton, for the sake of devices that compile each shape; a CPU does not.
    trl_utils._use_triton = lambda device: True
    trl_utils._ChunkedLogProbFunction = WholeLogits  # type: ignore[assignment,misc]
