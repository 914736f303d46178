"""What a training starts from: a model's folder or name, a registry version, or a trainer's checkpoint."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from convrec.errors import InputError
from convrec.paths import CHECKPOINTS
from convrec.training.checkpoints import find_damage

logger = logging.getLogger(__name__)

_STATE = "trainer_state.json"
_CONTINUED = ("*.safetensors", "optimizer.pt", "scheduler.pt", "rng_state*.pth", _STATE)


@dataclass(frozen=True)
class Start:
    """The model to load (a folder, or a Hugging Face name), and the checkpoint to continue, if there is one."""

    model: str
    checkpoint: Path | None = None


def resolve_start(start: str, sft: Path, max_steps: int | None, download: Callable[[str], Path]) -> Start:
    """Return what the parameter `rank_grpo.start` names.

    `sft`: the stage's model. A folder with `trainer_state.json`: a checkpoint to continue (weights, optimiser,
    schedule, random state, step), with the SFT model as the reference of the KL penalty. Another folder, or a Hugging
    Face name: weights and tokenizer, and a fresh optimiser. `models:/NAME/VERSION`, `models:/NAME@ALIAS`: the same
    from the registry, from which `download` takes its folder.

    Raises `InputError` for a folder that lacks what its kind needs, or a checkpoint at or past `max_steps`.
    """
    if start == "sft":
        return Start(str(sft))
    if start.startswith("models:/"):
        folder = download(start)
        logger.info("starting from %s: its weights, at step 0", start)
        return Start(str(folder))
    folder = Path(start)
    if not folder.is_dir():
        if folder.is_absolute() or start.startswith(".") or start.count("/") > 1:
            raise InputError(f"rank_grpo.start = {start!r}: no such folder")
        logger.info("starting from the Hugging Face model %s", start)
        return Start(start)
    if (folder / _STATE).is_file():
        return _checkpoint(start, folder, sft, max_steps)
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise InputError(f"rank_grpo.start = {start!r} lacks {', '.join(missing)}; a model's folder needs them")
    logger.info("starting from the weights in %s, which has no optimiser or schedule: both are fresh, at step 0", start)
    return Start(start)


def _checkpoint(start: str, folder: Path, sft: Path, max_steps: int | None) -> Start:
    by_deepspeed = any(folder.glob("global_step*"))  # it keeps the optimiser in a folder of its own
    if by_deepspeed and not folder.resolve().is_relative_to(CHECKPOINTS.resolve()):
        raise InputError(
            f"rank_grpo.start = {start!r}: DeepSpeed's checkpoints are pickles, which can run code, and are continued "
            f"below {CHECKPOINTS}/ alone; start from its model instead, or, if this project wrote it, move it there"
        )
    wanted = [pattern for pattern in _CONTINUED if pattern != "optimizer.pt" or not by_deepspeed]
    missing = [pattern for pattern in wanted if not any(folder.glob(pattern))]
    if missing:
        raise InputError(
            f"rank_grpo.start = {start!r} has {_STATE}, so it is a checkpoint to continue, but it lacks "
            f"{', '.join(missing)}; to start afresh from its weights, remove {_STATE} from a copy of it"
        )
    damage = find_damage(folder)
    if damage is not None:
        raise InputError(f"rank_grpo.start = {start!r} is damaged: {damage}; name an older checkpoint or a whole copy")
    step = json.loads((folder / _STATE).read_text(encoding="utf-8"))["global_step"]
    if max_steps is not None and step >= max_steps:
        raise InputError(f"rank_grpo.start = {start!r} is at step {step}; raise rank_grpo.max_steps = {max_steps}")
    logger.info("continuing the checkpoint %s at step %d; the reference policy is %s", start, step, sft)
    return Start(str(sft), folder)
