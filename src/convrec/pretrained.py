"""Models and tokenizers as they are loaded: weights from safetensors alone, and no code that lies beside them.

Nothing else in the library calls `from_pretrained` of a model, a configuration or a tokenizer.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from convrec.errors import InputError


@contextmanager
def refusals(source: str | Path, parameter: str = "base_model.trust_remote_code") -> Iterator[None]:
    """Turn what transformers says of code that may not run, and of weights that are pickled, into an `InputError`."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise InputError(
            f"{source}: it takes code of its own, which lies beside its weights and is not run; read that code, then "
            f"set {parameter} to true, or take another model"
        ) from None
    except OSError as error:
        if "model.safetensors" not in str(error):
            raise
        raise InputError(
            f"{source}: no *.safetensors; weights in .bin or .pt files are pickles, which can run code, and are not "
            "read: take a revision with safetensors, or save it so (`save_pretrained`) where it is trusted"
        ) from None


def load_config(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the configuration of a Hugging Face name or folder; raises `InputError` where it takes other code."""
    with refusals(source):
        return AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **options)


def load_model(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the model of a Hugging Face name or folder; `options` are those of `from_pretrained`.

    Raises `InputError` where there are no safetensors, or its code lies beside them and is not trusted.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (10 s to import)

    loader: Any = AutoModelForCausalLM
    with refusals(source):
        return loader.from_pretrained(source, use_safetensors=True, trust_remote_code=trust_remote_code, **options)


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the tokenizer of a Hugging Face name or folder, as it was saved, padding on the left.

    For a Qwen2 folder AutoTokenizer always builds Qwen's own tokenizer class, which puts Qwen's word splitting in the
    place of the saved one; a tokenizer that was saved without a class of its own is loaded from its file alone.
    Raises `InputError` where its code lies beside it and is not trusted.
    """
    config = Path(source) / "tokenizer_config.json"
    saved = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") if config.is_file() else None
    if saved == "TokenizersBackend":
        fast: Any = PreTrainedTokenizerFast
        return fast.from_pretrained(source, padding_side="left", **options)
    loader: Any = AutoTokenizer
    with refusals(source):
        return loader.from_pretrained(source, padding_side="left", trust_remote_code=trust_remote_code, **options)
