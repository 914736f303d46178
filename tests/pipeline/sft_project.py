"""A project that is ready for SFT: four steps of eight rows, a checkpoint after each second one."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from convrec.data.conversations import write_rows
from convrec.generation.finite import FiniteTrainer
from convrec.project.paths import Paths
from convrec.training.embedded import make_model, train_tokenizer
from tests.generation.small import save
from tests.registry.registered import make_workspace
from tests.rows import make_row
from tests.service.recommending import CATALOG, SIZES, WORDS
from tests.small_project import set_params


def make_sft_project(folder: Path, words: int = 0, model: dict[str, int] = SIZES, **common: Any) -> Paths:
    """Write the project; prompts have about `words` words, the model these sizes, `common` is of params.yaml."""
    paths = Paths(make_workspace(folder))
    few = {"num_train_epochs": 1, "save_steps": 2, "validation_prompts": 1, "per_device_train_batch_size": 8}
    few |= {"likes": False, "demonstration_weight": 1.0}
    set_params(folder, {"sft": few, "common": common})
    tokenizer = train_tokenizer([WORDS] * 5, CATALOG.items, 300)
    save(paths.model("base"), make_model(tokenizer, **model, seed=0), tokenizer)
    paths.demonstration("train").parent.mkdir()
    rows = [make_row(f"p{number}", [], "a film with " + "heists " * (words + number % 5)) for number in range(32)]
    lines = "\n".join(map(str, CATALOG.items[:4]))
    frame = pd.DataFrame(rows)[["prompt_id", "messages"]].assign(reflect=lines)  # sft.lists
    for name in ("train", "validation"):
        write_rows(frame, paths.demonstration(name))
    return paths


def lose_memory(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Let training steps of more rows than `most` run out of memory after the second one; return the rows of each."""
    real, steps = FiniteTrainer.training_step, []

    def step(trainer: Any, *arguments: Any, **options: Any) -> Any:
        size = trainer.args.per_device_train_batch_size
        if size > most and trainer.state.global_step == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore words")
        steps.append(size)
        return real(trainer, *arguments, **options)

    monkeypatch.setattr(FiniteTrainer, "training_step", step)
    return steps
