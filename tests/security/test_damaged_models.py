"""Model folders of others that are damaged: each ends in one `InputError` that names the folder and what is wrong."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from convrec.generation.model_folders import check_model
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.project.errors import InputError
from tests.service.recommending import save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a small model in several shards, and its tokenizer."""
    return save_model(tmp_path_factory.mktemp("whole"), max_shard_size="20KB")


def _load(folder: Path) -> None:
    check_model(folder, f"--model {folder}")
    load_model(folder)
    load_tokenizer(folder)


def _edit(name: str, change) -> object:
    def damage(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value))

    return damage


def _write(name: str, content: bytes):
    return lambda folder: (folder / name).write_bytes(content)


def _first_shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def _weights(change):
    def damage(folder: Path) -> None:
        for path in folder.glob("*.safetensors"):
            tensors = load_file(path)
            change(tensors)
            save_file(tensors, path, {"format": "pt"})

    return damage


_INDEX = "model.safetensors.index.json"
_NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: [path.unlink() for path in folder.iterdir()], "lacks config.json"),
        (lambda folder: (folder / "config.json").unlink(), "lacks config.json"),
        (_write("config.json", b"{"), "config.json"),
        (_write("config.json", b"[1]"), ""),
        (_edit("config.json", lambda value: value.update(hidden_size="wide")), "hidden_size"),
        (_edit("config.json", lambda value: value.update(model_type="nosuch", architectures=["No"])), "nosuch"),
        (lambda folder: _first_shard(folder).write_bytes(_first_shard(folder).read_bytes()[:-8]), "incomplete"),
        (lambda folder: _first_shard(folder).unlink(), "model-00001-of"),
        (_edit(_INDEX, lambda value: value["weight_map"].update({_NORM: "../x"})), "../x"),
        (_edit(_INDEX, lambda value: value.pop("weight_map")), "weight_map"),
        (_weights(lambda tensors: tensors.pop(_NORM, None)), _NORM),
        (_weights(lambda tensors: _NORM in tensors and tensors.update({_NORM: torch.ones(7)})), _NORM),
        (_weights(lambda tensors: _NORM in tensors and tensors[_NORM].fill_(torch.nan)), f"{_NORM} has inf or NaN"),
        (_edit("config.json", lambda value: value.update(_attn_implementation="other/kernel")), "'other/kernel'"),
        (_edit("config.json", lambda value: value.update(attn_implementation={"": "a/b"})), "'a/b'"),
        (lambda folder: (folder / "tokenizer.json").write_bytes(b"{}"), ""),
        (_write("tokenizer_config.json", b"[]"), ""),
        (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")], "lacks tokenizer_config.json"),
        (_edit("config.json", lambda value: value.update(vocab_size=100)), "tokens, its config.json 100"),
    ],
    ids=range(19),
)
def test_a_damaged_folder_is_told(damage, words, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    _load(folder)
    damage(folder)
    with pytest.raises(InputError) as error:
        _load(folder)
    assert str(folder) in str(error.value) and words in str(error.value) and "\n" not in str(error.value)
