"""Checkpoints: what is resumed and why not, in one process and in several, and what is kept aside if damaged."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from convrec.project.errors import InputError
from convrec.training.checkpoints import (
    best_step,
    complete_checkpoints,
    last_checkpoint,
    prepare_folder,
    set_damaged_aside,
)
from tests.registry.tracking.server import free_port
from tests.training.tiny_sft import STEPS, make_tiny, train_tiny


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [("optimizer.pt", _cut), ("model.safetensors", _zero), ("scheduler.pt", _zero), ("trainer_state.json", _cut)],
)
def test_a_training_falls_back_to_the_newest_whole_checkpoint(tmp_path, caplog, name, damage: Callable[[Path], None]):
    whole = train_tiny(make_tiny(), tmp_path / "undisturbed")
    folder = tmp_path / "disturbed"
    train_tiny(make_tiny(), folder, stop=4)
    newest = folder / "checkpoint-4"
    damage(newest / name)
    damaged = _files(newest)
    saved = train_tiny(make_tiny(), folder)
    assert (saved / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    (warning,) = (text for text in caplog.messages if "damaged" in text)
    assert warning.startswith(f"{newest} is damaged ({name}") and "\n" not in warning
    assert _files(folder / "damaged-checkpoint-4") == damaged
    assert max(complete_checkpoints(folder)) == STEPS


def test_a_training_whose_checkpoints_are_all_damaged_starts_afresh(tmp_path):
    train_tiny(make_tiny(), tmp_path, stop=2)
    for step in (1, 2):
        _cut(tmp_path / f"checkpoint-{step}" / "optimizer.pt")
    set_damaged_aside(tmp_path)
    assert last_checkpoint(tmp_path) is None
    assert sorted(path.name for path in tmp_path.glob("*-checkpoint-*")) == [f"damaged-checkpoint-{n}" for n in (1, 2)]


def test_a_best_checkpoint_that_is_damaged_becomes_no_model(tmp_path):
    train_tiny(make_tiny(), tmp_path, stop=3)
    state = tmp_path / "checkpoint-3" / "trainer_state.json"
    text = state.read_text().replace('"best_global_step": null', '"best_global_step": 1')
    state.write_text(text)
    sizes = json.loads((state.parent / "complete").read_text()) | {state.name: state.stat().st_size}
    (state.parent / "complete").write_text(json.dumps(sizes))
    assert best_step(tmp_path) == 1 and 1 in complete_checkpoints(tmp_path)
    _cut(tmp_path / "checkpoint-1" / "model.safetensors")
    assert 1 not in complete_checkpoints(tmp_path)
    set_damaged_aside(tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("*checkpoint-*"))] == [
        "checkpoint-2",
        "checkpoint-3",
        "damaged-checkpoint-1",
    ]


def test_a_file_of_a_folder_in_a_checkpoint_counts(tmp_path):
    """DeepSpeed keeps its optimiser in one."""
    train_tiny(make_tiny(), tmp_path, stop=2)
    inner = tmp_path / "checkpoint-2" / "global_step2" / "states.pt"
    inner.parent.mkdir()
    inner.write_bytes(b"of a process that was killed")
    assert last_checkpoint(tmp_path).name == "checkpoint-1"


ZERO2 = {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "zero2.json", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("variables", "writer"),
    [(ZERO2, r"DeepSpeed \(zero2.json\) in 2 processes"), ({"ACCELERATE_USE_FSDP": "true"}, "FSDP")],
)
def test_a_checkpoint_of_another_kind_of_launch_is_refused_and_kept(tmp_path, monkeypatch, variables, writer):
    train_tiny(make_tiny(), tmp_path, stop=1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"checkpoint-1 was written by one process or DDP, and {writer} cannot resume"):
        prepare_folder(tmp_path)
    monkeypatch.undo()
    assert prepare_folder(tmp_path) == tmp_path / "checkpoint-1"


@pytest.mark.slow
def test_processes_resume_one_checkpoint_and_share_its_folder(tmp_path):
    checkpoint = tmp_path / "checkpoints" / "key" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    for name in ("complete", "trainer_state.json"):
        (checkpoint / name).write_text("{}")
    own = [tmp_path / "node-0", tmp_path / "node-1"]
    port, pair = free_port(), []
    for rank, place in enumerate(own):
        place.mkdir()
        command = [sys.executable, "-m", "tests.training.sharing", str(tmp_path), str(place)]
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        pair.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True))
    printed = [json.loads(process.communicate(timeout=120)[0]) for process in pair]
    assert printed[0] == printed[1], "all processes end alike"
    same, different, apart = printed[0]
    assert same == str(checkpoint.relative_to(tmp_path))
    told = "checkpoints/key-0, checkpoints/key-1: the processes have different parameters or inputs"
    assert different.startswith(told)
    assert apart.startswith("checkpoints/elsewhere: not every process sees it")
