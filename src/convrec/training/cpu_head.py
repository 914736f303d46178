"""A faster log-probability head for TRL's models on a CPU: it scores only the positions with a label, in one block."""

from typing import Any

import torch
from trl.trainer import utils as trl_utils

MAX_LOGITS = 2**25  # logits in memory at a time: 128 MiB in float32; above that, TRL's tile-by-tile function is used

_TILES = trl_utils._ChunkedLogProbFunction
_OUTPUTS = {"log_probs", "entropy", "is_top1"}


class WholeLogits:
    """Replaces TRL's autograd function, whose backward pass computes the logits a second time."""

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
        """Return log-probability, entropy, None, None, and whether the target is the most probable token.

        The two None take the places of outputs of TRL's function that its callers here do not request.

        Shape: hidden (T, H), weight (V, H), targets (T,); each result (T,). Units: nats.
        """
        is_spread = hasattr(weight, "ds_id")  # ZeRO-3 partitions it; TRL gathers it again for the backward pass
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
    """Install this head in all models that TRL trains in this process."""
    # TRL calls `_use_triton` only to decide whether its head skips positions without a label (prompts, padding).
    # Without Triton it scores them too, because some devices compile each shape. A CPU does not.
    trl_utils._use_triton = lambda device: True
    trl_utils._ChunkedLogProbFunction = WholeLogits  # type: ignore[assignment,misc]
