"""One of two processes that prepare a training's folder: together, with different keys, and in different places."""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
from accelerate import PartialState

from convrec.project.errors import InputError
from convrec.training.checkpoints import prepare_folder
from convrec.training.launch import rank_process


def _prepare(folder: Path) -> str:
    try:
        return str(prepare_folder(folder))
    except InputError as error:
        return str(error)


def main(shared: Path, own: Path) -> None:
    """Print what each call returns or raises."""
    rank = int(os.environ["RANK"])
    PartialState(cpu=True)  # as the trainer's arguments do
    os.chdir(shared)
    same, different = _prepare(Path("checkpoints/key")), _prepare(Path(f"checkpoints/key-{rank}"))
    os.chdir(own)
    sys.stdout.write(json.dumps([same, different, _prepare(Path("checkpoints/elsewhere"))]))
    dist.destroy_process_group()


if __name__ == "__main__":
    with rank_process():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
