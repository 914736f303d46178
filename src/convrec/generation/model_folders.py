"""Models that write lists: a folder, a name on the Hugging Face hub, or adapters on another folder."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.data.catalog import Catalog
from convrec.generation.pretrained import load_config, load_tokenizer, refusals, require_chat
from convrec.project.errors import InputError
from convrec.project.paths import path_of

_ADAPTERS = "adapter_config.json"
_TOKENIZER = ("tokenizer_config.json", "tokenizer.json")
# The files that a model's lists depend on; a trainer's checkpoint contains more.
_PATTERNS = (
    "*.safetensors",
    "*config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "*.jinja",
    "*.py",  # of a model with code of its own, which runs where base_model.trust_remote_code allows it
)


def find_model(name: str, field: str, trust_remote_code: bool = False) -> Path:
    """Return the folder of a model: the folder named, or the hub's model NAME or NAME@REVISION in the hub's cache.

    `field` is what the name was given for. Raises `InputError` for a folder that is not there or cannot answer chat
    prompts, and where the hub does not give the model.
    """
    folder = _locate(name, field)
    check_model(folder, f"{field} {name}", trust_remote_code)
    return folder


def _locate(name: str, field: str) -> Path:
    folder = path_of(name, field)
    if not folder.is_dir():
        by_path = folder.is_absolute() or name.startswith(".") or name.count("/") > 1
        if by_path or (folder.parent != Path() and folder.parent.is_dir()):
            raise InputError(
                f"{field} {name}: no such folder; give a model folder, a name on the hub, or models:/NAME@ALIAS"
            )
        from convrec.generation.hub import cached_model  # noqa: PLC0415  (asks the hub)

        folder = cached_model(name, [*_PATTERNS, "*.model", "*.safetensors.index.json"])
    return folder


def check_model(folder: Path, what: str, trust_remote_code: bool = False) -> None:
    """Raise `InputError`, which names `what`, where a folder lacks what it takes to answer chat prompts."""
    needed = [(_ADAPTERS,)] if (folder / _ADAPTERS).is_file() else [("config.json",)]
    missing = [names[0] for names in (*needed, _TOKENIZER) if not any((folder / name).is_file() for name in names)]
    if not has_weights(folder):
        missing.append("*.safetensors")
    if missing:
        raise InputError(f"{what}: lacks {', '.join(missing)}; a model folder needs them")
    adapted = adapters_base(folder)
    if adapted is not None and not (adapted / "config.json").is_file():
        raise InputError(
            f"{what}: adapters on {adapted}, which is not a model folder here; "
            "merge the adapters where their base model is"
        )
    config = load_config(folder if adapted is None else adapted, trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
    size = getattr(config.get_text_config(), "vocab_size", None)
    if isinstance(size, int) and len(tokenizer) > size:
        raise InputError(
            f"{what}: its tokenizer has {len(tokenizer):,} tokens, its config.json {size:,}; take both from one model"
        )
    require_chat(tokenizer, what)


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds weights that can be loaded; some of DeepSpeed's checkpoints do not."""
    return any(folder.glob("*.safetensors"))


def adapters_base(folder: Path) -> Path | None:
    """Return the folder of the model whose adapters a folder holds; None where it holds a whole model."""
    config = folder / _ADAPTERS
    if not config.is_file():
        return None
    with refusals(folder):
        name = json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"]
    if not isinstance(name, str):
        raise InputError(f"{config}: base_model_name_or_path = {name!r:.100} is not a model name; correct it")
    return _locate(name, f"{config}: base_model_name_or_path")


def model_files(folder: Path) -> list[Path]:
    """Return the files that decide a model's lists, sorted; with adapters, those of their base too."""
    own = sorted({path for pattern in _PATTERNS for path in folder.glob(pattern)})
    base = adapters_base(folder)
    return own if base is None else own + model_files(base)


@contextmanager
def standalone(folder: Path, newer: Catalog | None = None, trust_remote_code: bool = False) -> Iterator[Path]:
    """Give a folder that loads by itself: the same one, or a copy for as long as the context lasts.

    In a copy, adapters are merged, and the items of a `newer` catalog (`line_tokens.keep_up`) have tokens.
    """
    base, whole = adapters_base(folder), folder
    with tempfile.TemporaryDirectory() as made:
        if base is not None:
            from convrec.generation.export import export_model  # noqa: PLC0415  (adapters alone need PEFT)

            whole, tokenizer = Path(made), load_tokenizer(folder, trust_remote_code=trust_remote_code)
            export_model(folder, base, tokenizer, whole, 1.0, trust_remote_code)
        if newer is not None:
            from convrec.generation.item_tokens import write_with_new_items  # noqa: PLC0415  (imports torch)

            write_with_new_items(whole, Path(made), newer, trust_remote_code)
            whole = Path(made)
        yield whole
