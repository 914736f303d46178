"""The starting point of a training: a model's folder or name, a registry version, or a trainer's checkpoint."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from convrec.project.errors import InputError
from convrec.project.paths import CHECKPOINTS
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
    """Return the starting point that the parameter `rank_grpo.start` names.

    - `sft`: the model of the stage `sft`, in the folder `sft`.
    - A folder with `trainer_state.json`: a checkpoint to continue, with its weights, optimiser, schedule, random state
      and step. The SFT model is the reference of the KL penalty.
    - Another folder, or a Hugging Face name: weights and tokenizer, with a new optimiser.
    - `models:/NAME/VERSION` or `models:/NAME@ALIAS`: the same from the registry; `download` returns its folder.

    Raises `InputError` for a folder that lacks a required file, or a checkpoint at or past `max_steps`.
    """
    if start == "sft":
        return Start(str(sft))
    if start.startswith("models:/"):
        folder = download(start)
        logger.info("starting from the weights of %s, at step 0", start)
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
        raise InputError(f"rank_grpo.start = {start!r} lacks {', '.join(missing)}; add what is missing")
    logger.info("starting from the weights in %s with a new optimiser and schedule, at step 0", start)
    return Start(start)


def _checkpoint(start: str, folder: Path, sft: Path, max_steps: int | None) -> Start:
    by_deepspeed = any(folder.glob("global_step*"))  # its folder of the optimiser
    if by_deepspeed and not folder.resolve().is_relative_to(CHECKPOINTS.resolve()):
        raise InputError(
            f"rank_grpo.start = {start!r}: DeepSpeed's checkpoints are pickles, which can run code, and are continued "
            f"only below {CHECKPOINTS}/; start from its model instead, or move it there if this project wrote it"
        )
    wanted = [pattern for pattern in _CONTINUED if pattern != "optimizer.pt" or not by_deepspeed]
    missing = [pattern for pattern in wanted if not any(folder.glob(pattern))]
    if missing:
        raise InputError(
            f"rank_grpo.start = {start!r} has {_STATE}, so it is a checkpoint to continue, but it lacks "
            f"{', '.join(missing)}; to start only from its weights, remove {_STATE} from a copy of the folder"
        )
    damage = find_damage(folder)
    if damage is not None:
        raise InputError(
            f"rank_grpo.start = {start!r} is damaged: {damage}; name an older checkpoint or an intact copy"
        )
    step = json.loads((folder / _STATE).read_text(encoding="utf-8"))["global_step"]
    if max_steps is not None and step >= max_steps:
        raise InputError(f"rank_grpo.start = {start!r} is at step {step}; raise rank_grpo.max_steps = {max_steps}")
    logger.info("continuing from the checkpoint %s at step %d; the reference policy is %s", start, step, sft)
    return Start(str(sft), folder)
