"""Checks whether a model's attention function may be replaced by an equivalent one for another layout of the tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SDPA = "sdpa"


def text_config(model: Any) -> Any:
    """Return the configuration that a causal language model's layers read."""
    return model.config.get_text_config()


@contextmanager
def with_attention(model: Any, implementation: str) -> Iterator[None]:
    """Let a model use this attention function in the block."""
    config = text_config(model)
    before, config._attn_implementation = config._attn_implementation, implementation
    try:
        yield
    finally:
        config._attn_implementation = before


def attention_hindrance(model: Any) -> str | None:
    """Return why not all layers of a model are full causal attention by SDPA, or None if they are."""
    config = text_config(model)
    if config._attn_implementation != SDPA:
        return f"attn_implementation is {config._attn_implementation!r}, not {SDPA!r}"
    if not model._supports_attention_backend:
        return f"{type(model).__name__} does not accept another attention function"
    return order_hindrance(model)


def order_hindrance(model: Any) -> str | None:
    """Return why the place of a token in memory matters to a model beside its position and mask, or None.

    A sliding window, a chunk or a recurrent state depends on the order of the tokens in memory.
    """
    config = text_config(model)
    if model._is_stateful:
        return f"{type(model).__name__} has a recurrent state"
    layers = getattr(config, "layer_types", None)
    if layers is None:
        layers = ["full_attention" if getattr(config, "sliding_window", None) is None else "sliding_attention"]
    layers = [*layers, *getattr(config, "attention_layers", ())]  # GPT-Neo's name for them
    others = sorted(set(layers) - {"full_attention", "global"})
    return f"some layers are {', '.join(others)}, not full_attention" if others else None
