"""Models and tokenizers as they are loaded: weights from safetensors alone, and no code that lies beside them.

Nothing else in the library calls `from_pretrained` of a model, a configuration or a tokenizer.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from convrec.project.errors import InputError, outside_cause

_ATTENTION = (None, "eager", "sdpa")  # of transformers itself; for others it can load kernels from the hub
_DOWNLOAD = "download it again, or use another model"


@contextmanager
def refusals(source: str | Path, parameter: str = "base_model.trust_remote_code") -> Iterator[None]:
    """Turn what transformers says of a model that it does not load into an `InputError`.

    Code that may not run and pickled weights are told as such. What the machine lacks, space or memory, is raised on.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = str(error)
        if outside_cause(error) is not None or "out of memory" in text or isinstance(error, MemoryError):
            raise
        if isinstance(error, ValueError) and "trust_remote_code" in text:
            raise InputError(
                f"{source}: it needs the code in its repository, which is not run by default; read that code, "
                f"then set {parameter} to true, or use another model"
            ) from None
        if isinstance(error, OSError) and "model.safetensors" in text:
            raise InputError(
                f"{source}: no *.safetensors; weights in .bin or .pt files are pickles, which can run code, and are "
                "not read: take a revision with safetensors, or save it so (`save_pretrained`) where it is trusted"
            ) from None
        problem = f"{type(error).__name__}: {' '.join(text.split())[:300]}"
        raise InputError(f"{source}: not a model that can be loaded ({problem}); {_DOWNLOAD}") from None


def load_config(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the configuration of a Hugging Face name or folder.

    Raises `InputError` where it takes other code: that of its repository, or attention kernels of the hub.
    """
    with refusals(source):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **options)
    parts = [config, *(part for name in config.sub_configs if (part := getattr(config, name, None)) is not None)]
    if other := next((name for part in parts if (name := part._attn_implementation) not in _ATTENTION), None):
        raise InputError(
            f"{source}: its config.json chooses the attention {other!r:.100}, which may load code from the hub; remove "
            "_attn_implementation from it"
        )
    return config


def load_model(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the model of a Hugging Face name or folder; `options` are those of `from_pretrained`.

    Raises `InputError` where there are no safetensors, where one of its files is damaged, tensors are missing, inf or
    NaN, and where it takes code that is not trusted.
    """
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  (10 s to import)

    loader: Any = AutoModelForCausalLM
    pinned = {name: options[name] for name in ("revision",) if name in options}
    load_config(source, trust_remote_code=trust_remote_code, **pinned)  # no kernels of the hub
    options |= {"use_safetensors": True, "trust_remote_code": trust_remote_code}
    with refusals(source):
        model, found = loader.from_pretrained(source, output_loading_info=True, ignore_mismatched_sizes=True, **options)
    if other := sorted(found["mismatched_keys"]):
        name, *shapes = other[0]
        wanted = " and not ".join(str(tuple(shape)) for shape in shapes)
        raise InputError(f"{source}: its weights do not fit its config.json ({name} is {wanted}); {_DOWNLOAD}")
    if missing := sorted(found["missing_keys"]):  # transformers would initialize them at random
        raise InputError(f"{source}: its weights lack {missing[0]} ({len(missing)} tensors in all); {_DOWNLOAD}")
    if bad := next((name for name, weight in model.state_dict().items() if not weight.isfinite().all()), None):
        raise InputError(f"{source}: its weights are damaged ({bad} has inf or NaN); {_DOWNLOAD}")
    return model


def load_tokenizer(source: str | Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """Return the tokenizer of a Hugging Face name or folder, as it was saved, padding on the left.

    For a Qwen2 folder AutoTokenizer always builds Qwen's own tokenizer class, which puts Qwen's word splitting in the
    place of the saved one; a tokenizer that was saved without a class of its own is loaded from its file alone.
    Raises `InputError` where its code lies beside it and is not trusted.
    """
    config = Path(source) / "tokenizer_config.json"
    with refusals(source):
        saved = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") if config.is_file() else None
        if saved == "TokenizersBackend":
            fast: Any = PreTrainedTokenizerFast
            return fast.from_pretrained(source, padding_side="left", **options)
        loader: Any = AutoTokenizer
        return loader.from_pretrained(source, padding_side="left", trust_remote_code=trust_remote_code, **options)
