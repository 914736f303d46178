"""Where a training keeps its checkpoints: outside DVC's outs, in a folder that names what is trained."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from convrec.fingerprint import fingerprint
from convrec.paths import CHECKPOINTS

_FINISHED = "finished"
_COMPLETE = "complete"
_STATE = "trainer_state.json"


def training_folder(stage: str, parameters: dict[str, Any], inputs: Iterable[Path]) -> Path:
    """Return the checkpoint folder keyed by the stage's parameters and the bytes of its inputs.

    An interrupted training, started again, finds its checkpoints; a changed parameter or input starts afresh.
    """
    return CHECKPOINTS / stage / fingerprint(parameters, inputs)


def clear_finished(folder: Path) -> None:
    """Remove the folder of a finished training: the stage is only run again when its code has changed."""
    if (folder / _FINISHED).exists():
        shutil.rmtree(folder)


def mark_finished(folder: Path, chosen: Path | None = None) -> None:
    """Say that the training's outputs are written, and of which checkpoint: none will be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FINISHED).write_text(chosen.name if chosen else "", encoding="utf-8")


def chosen_step(folder: Path) -> int | None:
    """Return the step of the checkpoint that became the model, or None before the end of the training."""
    marker = folder / _FINISHED
    name = marker.read_text(encoding="utf-8") if marker.is_file() else ""
    return _step(name) if name else None


class CompletionCallback(TrainerCallback):
    """Lists the files of each checkpoint in it once they are all written, so that one cut short is never resumed."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
            (folder / _COMPLETE).write_text(json.dumps(files), encoding="utf-8")


def _is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint was written to its end, and nothing of it is removed."""
    marker = checkpoint / _COMPLETE
    try:
        return all((checkpoint / name).exists() for name in json.loads(marker.read_text(encoding="utf-8")))
    except (FileNotFoundError, json.JSONDecodeError):
        return False


def has_ended(checkpoint: Path, stop_step: int | None = None) -> bool:
    """Return whether a checkpoint is of the last step of its training, or of `stop_step`: nothing is left to train."""
    state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    return state["global_step"] >= min(state["max_steps"], stop_step or state["max_steps"])


def _step(checkpoint: str) -> int:
    return int(checkpoint.rsplit("-", 1)[1])


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints in the folder by their step, the oldest first."""
    complete = {_step(path.name): path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _is_complete(path)}
    return dict(sorted(complete.items()))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint in the folder, or None."""
    return next(reversed(complete_checkpoints(folder).values()), None)


def best_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint with the best validation so far (see `ValidationCallback`), or None where there is none."""
    last = last_checkpoint(folder)
    step = json.loads((last / _STATE).read_text(encoding="utf-8"))["best_global_step"] if last else None
    best = folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    return best if step and _is_complete(best) else None
