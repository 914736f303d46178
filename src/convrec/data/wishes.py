"""Wishes that a list can keep, and what becomes of them: each is applied, weighted, dropped, or only told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

State = Literal["kept", "preferred", "unweighted", "named", "unsure", "dropped", "removed", "unknown"]


@dataclass(frozen=True, eq=False)
class Wish:
    """One wish: its text, what becomes of it, the items that fit it, and the folded values that it speaks against.

    `state` is `kept`; `preferred`, which raises the weight of what fits, or `unweighted` where a model has no weight
    for that; `named`, a title that is liked; `unsure`, and then not applied; `dropped`, because too few items were
    left; `removed`, by the user; or `unknown`, where no column of the catalog has it. Shape: fits (C,), booleans; None
    if named or unknown.
    """

    text: str
    state: State
    fits: np.ndarray | None = None
    against: frozenset[str] = frozenset()


def apply(
    wishes: Sequence[Wish], is_open: np.ndarray, least: int, choices: Mapping[str, bool] | None = None
) -> tuple[np.ndarray, list[Wish]]:
    """Return the items that are open under the wishes, and the wishes with their final states.

    `choices` maps the text of a wish to whether it is applied, whatever its state. A wish that would leave fewer than
    `least` items is dropped; what the user chose comes first, then exclusions, then limits, and of each the newest.
    Shape: is_open (C,), booleans.
    """
    chosen: Mapping[str, bool] = choices or {}
    found = [
        replace(wish, state="kept" if chosen[wish.text] else "removed")
        if wish.fits is not None and wish.text in chosen
        else wish
        for wish in wishes
    ]
    left = is_open
    ranks = [(wish.text in chosen, bool(wish.against), at) for at, wish in enumerate(found)]
    for *_, at in sorted(ranks, reverse=True):
        if found[at].state == "kept" and (fits := found[at].fits) is not None:
            if (fewer := left & fits).sum() >= least:
                left = fewer
            else:
                found[at] = replace(found[at], state="dropped")
    return left, found


_INTRO = {
    "kept": "I understood", "preferred": "preferred", "named": "like",
    "unweighted": "understood, but without weight in this model",
    "unsure": "not sure about, so not applied", "dropped": "dropped, because too few are left",
    "removed": "removed", "unknown": "not understood",
}  # fmt: skip


def summary(wishes: Sequence[Wish]) -> str:
    """Return one line for people, such as "I understood: no horror · before 1990"; empty without wishes."""
    parts = [
        f"{words}: {' · '.join(wish.text for wish in wishes if wish.state == state)}"
        for state, words in _INTRO.items()
        if any(wish.state == state for wish in wishes)
    ]
    return "; ".join(parts)


def told(wishes: Sequence[Wish]) -> list[dict[str, str]]:
    """Return text and state of each wish, for programs."""
    return [{"text": wish.text, "state": wish.state} for wish in wishes]
