"""Disables dropout: with it, rollouts would be sampled and scored under different distributions."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedConfig

_RATE = re.compile("drop|jitter")  # attention_dropout, resid_pdrop, layerdrop, lora_dropout, router_jitter_noise


def disable_dropout(model: torch.nn.Module) -> dict[str, float]:
    """Set all rates of dropout and router noise in a model and its configurations to 0; return those above 0 by name.

    TRL's `disable_dropout` covers only modules of the class `Dropout`; most attention layers store a plain number.
    """
    found: dict[str, float] = {}
    for holder in _holders(model):
        _clear(vars(holder), found)
        rate = getattr(holder, "p", None) if "Dropout" in type(holder).__name__ else None
        if rate:
            found["dropout"] = max(found.get("dropout", 0.0), rate)
            holder.p = 0.0
    return found


def _holders(model: Any) -> Iterator[Any]:
    """Yield the objects that store rates: modules, and configurations, which some modules read in each forward pass."""
    adapters = getattr(model, "peft_config", {})
    for name in adapters:
        adapters[name] = copy.copy(adapters[name])  # the caller may reuse the original
        yield adapters[name]
    for module in model.modules():
        if isinstance(config := getattr(module, "config", None), PreTrainedConfig):
            yield config
        yield module


def _clear(values: dict[str, Any], found: dict[str, float], name: str = "") -> None:
    """Set the rates among the values to 0 in place; a dictionary holds one rate for each adapter, under one name."""
    for key, value in values.items():
        if name or _RATE.search(key):
            if isinstance(value, dict):
                _clear(value, found, name or key)
            elif isinstance(value, float) and value:
                values[key] = 0.0
                found[name or key] = max(found.get(name or key, 0.0), value)
