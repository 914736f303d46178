"""Checkpoints of a training. They lie outside DVC's outs, in a folder named by its key (see `project.code`)."""

import json
import logging
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from safetensors import SafetensorError, safe_open
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from convrec.project.atomic import write_text
from convrec.project.code import Key
from convrec.project.errors import InputError
from convrec.project.paths import CHECKPOINTS
from convrec.training.launch import RETRAIN

logger = logging.getLogger(__name__)

_FINISHED = "finished.json"
_COMPLETE = "complete"
_LAYOUT = "layout"
_STATE = "trainer_state.json"


def training_folder(stage: str, key: Key) -> Path:
    """Return the checkpoint folder of a stage's training.

    If an interrupted training is started again, it finds its checkpoints. If a parameter or an input has changed, the
    training starts from the beginning.
    """
    return CHECKPOINTS / stage / key.task


def finished_model(folder: Path, key: Key) -> Path | None:
    """Return the model that a finished training with this key wrote below its folder, or None.

    With CONVREC_RETRAIN in the environment, which the flows' option `--force` sets, no training counts as finished.
    """
    finished = _read_finished(folder)
    if finished.get("made_by") != key.made_by or RETRAIN in os.environ:
        return None
    model = folder / finished["model"]
    if not model.is_dir():
        return None
    logger.info("the finished training in %s is used: its parameters, inputs, code and library versions match", folder)
    return model


def _read_finished(folder: Path) -> dict[str, Any]:
    marker = folder / _FINISHED
    return dict(json.loads(marker.read_text(encoding="utf-8"))) if marker.is_file() else {}


def prepare_folder(folder: Path) -> Path | None:
    """Create the folder of a training, and return the checkpoint to resume, if there is one.

    The first process clears what is finished or damaged and chooses the checkpoint; all processes get the same one.
    Raises `InputError` if the processes do not share the folder, have different parameters or inputs, or cannot read
    the checkpoint, because another kind of launch wrote it.
    """
    state = PartialState()
    with state.main_process_first():
        if state.is_main_process:
            if (folder / _FINISHED).exists():  # it is trained again, because code or versions have changed
                shutil.rmtree(folder)
            set_damaged_aside(folder)
            folder.mkdir(parents=True, exist_ok=True)
    seen = gather_object([(str(folder), folder.is_dir(), last_checkpoint(folder))])
    names = sorted({name for name, _, _ in seen})
    if len(names) > 1:
        raise InputError(
            f"{', '.join(names)}: the processes have different parameters or inputs; start all nodes in one shared "
            "folder"
        )
    if not all(exists for _, exists, _ in seen):
        raise InputError(f"{folder}: not every process sees it; start all nodes in one shared folder")
    checkpoint: Path | None = seen[0][2]
    if checkpoint is not None and (file := checkpoint / _LAYOUT).is_file():
        wrote, reads = file.read_text(encoding="utf-8"), _layout()
        if wrote != reads:
            raise InputError(
                f"{checkpoint} was written by {wrote}, and {reads} cannot resume it; set `launch` and `num_processes` "
                f"as they were, or remove {folder} to train from the beginning"
            )
    return checkpoint


def _layout() -> str:
    """Return what decides the format of the optimizer's state: DeepSpeed's partitions, FSDP's file or torch's."""
    if deepspeed := os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE"):
        return f"DeepSpeed ({deepspeed}) in {os.environ['WORLD_SIZE']} processes"
    return "FSDP" if os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true" else "one process or DDP"


def mark_finished(folder: Path, model: Path, key: Key) -> None:
    """Record that the training with this key has written its outputs, from this model below its folder.

    The training is not resumed after that; `finished_model` finds it again.
    """
    write_text(folder / _FINISHED, json.dumps({"model": model.name, "made_by": key.made_by}))


def chosen_step(folder: Path) -> int | None:
    """Return the step of the checkpoint that became the model, or None before the end of the training."""
    model = _read_finished(folder).get("model")
    if model is None or model.startswith(PREFIX_CHECKPOINT_DIR):
        return model and _step(model)
    return max(complete_checkpoints(folder), default=None)


class CompletionCallback(TrainerCallback):
    """Writes a list of the files and their sizes into each checkpoint once all files are written.

    A checkpoint without this list is incomplete, and is never resumed.
    """

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            write_text(folder / _LAYOUT, _layout())
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
            (folder / _COMPLETE).write_text(json.dumps(sizes), encoding="utf-8")


def find_damage(checkpoint: Path) -> str | None:
    """Return what is wrong with the files of a checkpoint, or None.

    The sizes are compared with the checkpoint's list of files, if it has one. The headers of tensor files and the
    trainer's state must be readable; the tensors themselves are not read.
    """
    marker = checkpoint / _COMPLETE
    try:
        sizes = dict(json.loads(marker.read_text(encoding="utf-8"))) if marker.is_file() else {}
        for name, size in sizes.items():
            found = (checkpoint / name).stat().st_size
            if found != size:
                return f"{name} has {found} of {size} bytes"
        json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except ValueError:
        return f"{_STATE} or {_COMPLETE} cannot be parsed"
    for path in sorted(checkpoint.rglob("*")):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="np"):
                    pass
            elif path.suffix in (".pt", ".pth"):
                zipfile.ZipFile(path).close()
        except (SafetensorError, zipfile.BadZipFile, OSError, ValueError) as error:
            return f"{path.relative_to(checkpoint)} cannot be read: {error}"
    return None


def set_damaged_aside(folder: Path) -> None:
    """Rename damaged checkpoints that were complete to `damaged-checkpoint-STEP`.

    One process must call this before any process looks for a checkpoint.
    """
    for marker in list(folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_COMPLETE}")):
        if damage := find_damage(marker.parent):
            aside = folder / f"damaged-{marker.parent.name}"
            shutil.rmtree(aside, ignore_errors=True)
            marker.parent.rename(aside)
            logger.warning("%s is damaged (%s); renamed to %s, and not used", marker.parent, damage, aside.name)


def has_ended(checkpoint: Path, stop_step: int | None = None) -> bool:
    """Return whether a checkpoint is at the last step of its training or at `stop_step`: nothing is left to train."""
    state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    return state["global_step"] >= min(state["max_steps"], stop_step or state["max_steps"])


def _step(checkpoint: str) -> int:
    return int(checkpoint.rsplit("-", 1)[1])


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints in the folder, none of them damaged, by their step, the oldest first."""
    written = [marker.parent for marker in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{_COMPLETE}")]
    complete = {_step(checkpoint.name): checkpoint for checkpoint in written if find_damage(checkpoint) is None}
    return dict(sorted(complete.items()))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in the folder, or None."""
    return next(reversed(complete_checkpoints(folder).values()), None)


def best_step(folder: Path) -> int | None:
    """Return the step with the best validation so far, 0 for the start (see `ValidationCallback`); None without one."""
    last = last_checkpoint(folder)
    if last is None:
        return None
    step: int | None = json.loads((last / _STATE).read_text(encoding="utf-8"))["best_global_step"]
    return step
