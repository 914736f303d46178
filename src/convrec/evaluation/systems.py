"""The systems of an evaluation: their keys in results/evaluate.json and their display names.

Each name in `BASELINES` is a method of `baselines.Baselines`.
"""

from collections.abc import Mapping
from typing import Any

BASELINES = {
    "popularity": "popularity",
    "last_month": "last month",
    "neighbours": "neighbours",
    "item_knn": "item-kNN",
    "ease": "EASE",
    "als": "ALS",
}
SYSTEMS = {
    **BASELINES,
    "zero_shot": "zero-shot",
    "sft": "SFT",
    "rank_grpo": "Rank-GRPO",
    "oracle": "oracle",
}
CONSTRAINED = "_constrained"  # key suffix of a system that decodes under the catalog constraint


def system_names(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return every evaluated system's name by key: known systems first, each free system before its constrained one."""
    known, names = list(SYSTEMS), {}
    found = [key for key, value in evaluation.items() if isinstance(value, Mapping) and "intervals" in value]
    free = {key: key.removesuffix(CONSTRAINED) for key in found}
    places = {key: (known.index(free[key]) if free[key] in known else len(known), key != free[key]) for key in found}
    for key in sorted(found, key=places.__getitem__):
        name = SYSTEMS.get(free[key], free[key].replace("_", " "))
        names[key] = name if key == free[key] else f"{name}, constrained"
    return names


def settings_words(settings: Mapping[str, Any]) -> str:
    """Return a baseline's hyper-parameters as text, separated by commas."""
    return ", ".join(
        f"{name.replace('_', ' ')} {'all' if value is None else f'{value:g}'}" for name, value in settings.items()
    )


def system_pair(key: str) -> tuple[str, str]:
    """Return the keys of the two systems of a paired difference, from its key `ONE_over_OTHER`."""
    one, other = key.split("_over_")
    return one, other
