"""Sizes of small models, and how one is saved beside its tokenizer."""

from pathlib import Path
from typing import Any


def sizes(hidden_size: int = 32, intermediate_size: int = 64, layers: int = 1, heads: int = 1) -> dict[str, int]:
    """Return the sizes that `make_model` takes."""
    feed = {"hidden_size": hidden_size, "intermediate_size": intermediate_size, "num_hidden_layers": layers}
    return {**feed, "num_attention_heads": heads, "num_key_value_heads": heads}


def save(folder: Path, model: Any, tokenizer: Any, **options: Any) -> Path:
    """Write both and return the folder; `options` are those of `save_pretrained`."""
    model.save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return folder
