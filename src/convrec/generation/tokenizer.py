"""Loading tokenizers from model folders."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast


def load_tokenizer(path: str | Path) -> Any:
    """Return the tokenizer of a Hugging Face name or folder, as it was saved, padding on the left.

    For a Qwen2 folder AutoTokenizer always builds Qwen's own tokenizer class, which puts Qwen's word splitting in the
    place of the saved one; a tokenizer that was saved without a class of its own is loaded from its file alone.
    """
    config = Path(path) / "tokenizer_config.json"
    saved = json.loads(config.read_text(encoding="utf-8")).get("tokenizer_class") if config.is_file() else None
    loader: Any = PreTrainedTokenizerFast if saved == "TokenizersBackend" else AutoTokenizer
    return loader.from_pretrained(path, padding_side="left")
