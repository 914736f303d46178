"""The systems of an evaluation: their keys in results/evaluate.json and their display names.

The key of a model names its lists as they are served: constrained if `evaluate.constrained`, and guided where there is
guidance. Its ablations have a suffix. Each name in `BASELINES` is a method of `baselines.Baselines`.
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
    "sasrec": "SASRec",
    "fusion": "fusion",
}
SYSTEMS = {
    **BASELINES,
    "zero_shot": "zero-shot",
    "sft": "SFT",
    "rank_grpo": "Rank-GRPO",
    "oracle": "oracle",
}
UNGUIDED = "_unguided"  # key suffix of a system's constrained lists without the guidance
FREE = "_free"  # key suffix of its lists without the constraint, where the served ones have it


def served_system(key: str) -> str:
    """Return the key of the system that an ablation belongs to, or the same key."""
    return key.removesuffix(FREE).removesuffix(UNGUIDED)


def is_ablation(key: str) -> bool:
    """Return whether a key names lists that are never served, of a system whose other lists are."""
    return key != served_system(key)


def system_names(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return every evaluated system's name by key: known systems first, ablations last."""
    known = list(SYSTEMS)
    found: list[tuple[bool, int, bool, str, str]] = []
    for key, value in evaluation.items():
        if isinstance(value, Mapping) and "intervals" in value:
            system = served_system(key)
            place = known.index(system) if system in known else len(known)
            ending = f", {key.removeprefix(f'{system}_')}" if is_ablation(key) else ""
            name = SYSTEMS.get(system, system.replace("_", " ")) + ending
            found.append((is_ablation(key), place, key.endswith(FREE), key, name))
    return {key: name for *_, key, name in sorted(found)}


def settings_words(settings: Mapping[str, Any]) -> str:
    """Return a baseline's hyper-parameters as text, separated by commas."""
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())


def system_pair(key: str) -> tuple[str, str]:
    """Return the keys of the two systems of a paired difference, from its key `ONE_over_OTHER`."""
    one, other = key.split("_over_")
    return one, other
