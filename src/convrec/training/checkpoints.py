"""Where a training keeps its checkpoints: outside DVC's outs, in a folder that names what is trained."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

ROOT = Path("checkpoints")


def training_folder(stage: str, parameters: dict[str, Any], inputs: Iterable[Path]) -> Path:
    """Return the checkpoint folder keyed by the stage's parameters and the bytes of its inputs.

    The same training, started again, finds its checkpoints; a changed parameter or input starts afresh.
    """
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode())
    for path in inputs:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return ROOT / stage / digest.hexdigest()[:16]


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest checkpoint in the folder, or None."""
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None
