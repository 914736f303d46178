"""Whether a model's attention may be replaced by another function that computes the same from another layout."""

from typing import Any

SDPA = "sdpa"


def text_config(model: Any) -> Any:
    """Return the configuration that a causal language model's layers read."""
    return model.config.get_text_config()


def attention_hindrance(model: Any) -> str | None:
    """Return what keeps all layers of a model from being full causal attention by SDPA, or None.

    A window, a chunk or a recurrent state would read the tokens in the order in which they come.
    """
    config = text_config(model)
    if config._attn_implementation != SDPA:
        return f"attn_implementation is {config._attn_implementation!r}, and not {SDPA!r}"
    if not model._supports_attention_backend or model._is_stateful:
        return f"{type(model).__name__} takes no other attention function"
    layers = getattr(config, "layer_types", None)
    if layers is None:
        layers = ["full_attention" if getattr(config, "sliding_window", None) is None else "sliding_attention"]
    others = sorted(set(layers) - {"full_attention"})
    return f"some layers are {', '.join(others)}, and not full_attention" if others else None
