"""Disables dropout: with it, rollouts would be sampled and scored under different distributions."""

import re

import torch

_RATE = re.compile("drop|jitter")  # attention_dropout, resid_pdrop, layerdrop, router_jitter_noise


def disable_dropout(model: torch.nn.Module) -> dict[str, float]:
    """Set all rates of dropout and router noise in a model and its configurations to 0; return those above 0 by name.

    TRL's `disable_dropout` covers only modules of the class `Dropout`; most attention layers store a plain number, and
    some modules read their configuration in each forward pass.
    """
    found: dict[str, float] = {}
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p:
            found["dropout"] = max(found.get("dropout", 0.0), module.p)
            module.p = 0.0
        for values in (vars(module), vars(getattr(module, "config", None) or module)):
            for name, rate in values.items():
                if isinstance(rate, float) and rate and _RATE.search(name):
                    found[name] = max(found.get(name, 0.0), rate)
                    values[name] = 0.0
    return found
