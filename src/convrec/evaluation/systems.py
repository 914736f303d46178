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
CONSTRAINED = (
    "_constrained"  # key suffix of a system's lists as they are served: constrained, guided where it has guidance
)
UNGUIDED = "_unguided"  # key suffix of its constrained lists without the guidance


def free_system(key: str) -> str:
    """Return the key of the system whose lists are constrained or guided, or the same key."""
    return key.removesuffix(CONSTRAINED).removesuffix(UNGUIDED)


def system_names(evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return every evaluated system's name by key: known systems first, free lists before constrained ones."""
    known = list(SYSTEMS)
    endings = {"": "", UNGUIDED: ", unguided", CONSTRAINED: ", constrained"}
    found: list[tuple[int, int, str, str]] = []
    for key, value in evaluation.items():
        if isinstance(value, Mapping) and "intervals" in value:
            ending = next(end for end in (CONSTRAINED, UNGUIDED, "") if key.endswith(end))
            free = key.removesuffix(ending)
            place = known.index(free) if free in known else len(known)
            name = SYSTEMS.get(free, free.replace("_", " ")) + endings[ending]
            found.append((place, list(endings).index(ending), key, name))
    names = {key: name for _, _, key, name in sorted(found)}
    return names


def settings_words(settings: Mapping[str, Any]) -> str:
    """Return a baseline's hyper-parameters as text, separated by commas."""
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())


def system_pair(key: str) -> tuple[str, str]:
    """Return the keys of the two systems of a paired difference, from its key `ONE_over_OTHER`."""
    one, other = key.split("_over_")
    return one, other
