"""Files that would leave a mark if they were unpickled, or if the code in them ran."""

import json
import pickle
from pathlib import Path

from tests.service.recommending import save_model

CODE = """import pathlib
pathlib.Path({marker!r}).touch()
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer


class Config(Qwen2Config):
    model_type = "foreign"


class Model(Qwen2ForCausalLM):
    config_class = Config


class Tokenizer(Qwen2Tokenizer):
    pass
"""


class Mark:
    """Makes the file `marker` when it is unpickled."""

    def __init__(self, marker: Path):
        self._marker = str(marker)

    def __reduce__(self):
        return open, (self._marker, "w")


def hostile_pickle(marker: Path, protocol: int = 2) -> bytes:
    return pickle.dumps({"state": Mark(marker)}, protocol)


def _save(folder: Path, marker: Path, name: str, **changes) -> Path:
    """Write a plain model, code beside it, and changes of a JSON file there that name this code."""
    save_model(folder)
    (folder / "code_of_its_own.py").write_text(CODE.format(marker=str(marker)))
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changes}))
    return folder


def save_model_with_code(folder: Path, marker: Path) -> Path:
    """Write a model whose configuration names classes in a file beside its weights."""
    names = {"AutoConfig": "code_of_its_own.Config", "AutoModelForCausalLM": "code_of_its_own.Model"}
    return _save(folder, marker, "config.json", model_type="foreign", architectures=["Model"], auto_map=names)


def save_tokenizer_with_code(folder: Path, marker: Path) -> Path:
    """Write a plain model whose tokenizer is a class in a file beside it."""
    names = {"AutoTokenizer": ["code_of_its_own.Tokenizer", None]}
    return _save(folder, marker, "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=names)
