"""Wishes that a list can keep, and what becomes of them: each is applied, weighted, dropped, or only told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

State = Literal["kept", "preferred", "unweighted", "named", "unsure", "dropped", "removed", "tried", "unknown"]


@dataclass(frozen=True, eq=False)
class Wish:
    """One wish: its text, what becomes of it, the items that fit it, and the folded values that it speaks against.

    `state` is `kept`; `preferred`, which raises the weight of what fits, or `unweighted` where a model has no weight
    for that; `named`, a title that is liked; `unsure`, and then not applied; `dropped`, because too few items were
    left; `removed`, by the user; `tried`, words that no column has, but texts of items do, so that evidence reads them;
    or `unknown`, not used. `left` is how many items are left otherwise: with a wish that is dropped, and without one
    that is kept, where this makes a list that is too short longer; else None. A wish that `is_soft` becomes preferred
    where it would make the list too short, and what fits comes first; where nothing fits, it is dropped. One that
    `is_asked` is for a value in so many words, not only mentioned.
    Shape: fits (C,), booleans; None if named or unknown.
    """

    text: str
    state: State
    fits: np.ndarray | None = None
    against: frozenset[str] = frozenset()
    left: int | None = None
    is_soft: bool = False
    is_asked: bool = False


def apply(
    wishes: Sequence[Wish],
    is_open: np.ndarray,
    length: int,
    choices: Mapping[str, bool] | None = None,
    or_fewer: bool = False,
) -> tuple[np.ndarray, list[Wish]]:
    """Return the items that are open under the wishes, and the wishes with their final states.

    `choices` maps the text of a wish to whether it is applied, whatever its state. A wish that would leave too few
    items for a list of a length (with `or_fewer`, none) is dropped; what the user chose comes first, then exclusions,
    then limits, and of each the newest.
    Shape: is_open (C,), booleans.
    """
    chosen: Mapping[str, bool] = choices or {}
    found = [
        replace(wish, state="kept" if chosen[wish.text] else "removed", is_soft=False)
        if wish.fits is not None and wish.text in chosen
        else wish
        for wish in wishes
    ]
    ranks = [(wish.text in chosen, bool(wish.against), not wish.is_soft, at) for at, wish in enumerate(found)]
    order = [at for *_, at in sorted(ranks, reverse=True) if found[at].state == "kept"]
    fitting = {at: fits for at in order if (fits := found[at].fits) is not None}
    least = {at: 1 if or_fewer and not found[at].is_soft else length for at in order}
    left, dropped = _narrowed(is_open, fitting, least)
    for at, count in dropped.items():
        is_soft = found[at].is_soft and count > 0
        found[at] = replace(found[at], state="preferred" if is_soft else "dropped", left=None if is_soft else count)
    if left.sum() < length:
        for at in fitting.keys() - dropped.keys():
            without, _ = _narrowed(is_open, {other: fits for other, fits in fitting.items() if other != at}, least)
            if without.sum() > left.sum():
                found[at] = replace(found[at], left=int(without.sum()))
    return left, found


def _narrowed(
    left: np.ndarray, fitting: Mapping[int, np.ndarray], least: Mapping[int, int]
) -> tuple[np.ndarray, dict[int, int]]:
    """Return what fits the wishes, applied in order; and how few items each wish that is dropped would leave."""
    dropped = {}
    for at, fits in fitting.items():
        if (fewer := left & fits).sum() >= least[at]:
            left = fewer
        else:
            dropped[at] = int(fewer.sum())
    return left, dropped


_INTRO = {
    "kept": "I understood", "preferred": "preferred", "named": "like",
    "unweighted": "understood, but without weight in this model",
    "dropped": "dropped, because too few are left", "removed": "removed",
    "tried": "tried by the words", "unknown": "not used",
}  # fmt: skip


def summary(wishes: Sequence[Wish]) -> str:
    """Return one line for people, such as "I understood: no horror · before 1990"; empty without wishes."""
    texts: dict[str, list[str]] = {state: [] for state in (*_INTRO, "unsure")}
    for wish in wishes:
        texts[wish.state].append(f"{wish.text} ({wish.left})" if wish.state == "dropped" else wish.text)
    parts = [f"{words}: {' · '.join(dict.fromkeys(texts[state]))}" for state, words in _INTRO.items() if texts[state]]
    short = [wish for wish in wishes if wish.state == "kept" and wish.left is not None]
    if short:
        best = max(short, key=lambda wish: wish.left or 0)
        parts.append(f"few are left: without {best.text!r}, there would be {best.left}")
    if texts["unsure"]:
        parts.append(f"did you mean: {' · '.join(texts['unsure'])}?")
    return "; ".join(parts)


def told(wishes: Sequence[Wish]) -> list[dict[str, Any]]:
    """Return each wish for programs: text and state; the question, if it is unsure; the items left otherwise, if known.

    See `Wish.left`.
    """
    return [
        {"text": wish.text, "state": wish.state}
        | ({"question": f"Did you mean: {wish.text}?"} if wish.state == "unsure" else {})
        | ({} if wish.left is None else {"left": wish.left})
        for wish in wishes
    ]
