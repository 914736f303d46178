"""Where a training keeps its checkpoints: outside DVC's outs, in a folder that names what is trained."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

ROOT = Path("checkpoints")
_FINISHED = "finished"


def training_folder(stage: str, parameters: dict[str, Any], inputs: Iterable[Path]) -> Path:
    """Return the checkpoint folder keyed by the stage's parameters and the bytes of its inputs.

    An interrupted training, started again, finds its checkpoints; a changed parameter or input starts afresh, and so
    does a training that was finished (`mark_finished`), which is only run again when its code has changed.
    """
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for path in inputs:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    folder = ROOT / stage / digest.hexdigest()[:16]
    if (folder / _FINISHED).exists():
        shutil.rmtree(folder)
    return folder


def mark_finished(folder: Path) -> None:
    """Say that the training's outputs are written: its checkpoints will not be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FINISHED).touch()


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest checkpoint in the folder, or None."""
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None
