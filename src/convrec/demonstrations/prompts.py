"""The prompts that get a demonstration."""

from collections.abc import Sequence

import numpy as np

from convrec.data.conversations import Row
from convrec.data.row_files import chosen_rows, column_of
from convrec.project.errors import InputError


def choose_prompts(prompts: Sequence[Row], until: str | None, share: float, seed: int) -> Sequence[Row]:
    """Return this share of the prompts up to the end of month `until`, in their order."""
    dates = column_of(prompts, "date")
    if until is not None and (dates == "").any():
        raise InputError(f"demonstrations.until = {until!r}: a training row has no date; give null")
    early = np.flatnonzero((dates.str.slice(0, 7) <= (until or "~")).to_numpy(bool))
    if not len(early):
        raise InputError(
            f"demonstrations.until = {until!r}: no training prompt is as early; give a later month or null"
        )
    order = np.random.default_rng(seed).permutation(len(early))
    return chosen_rows(prompts, early[np.sort(order[: max(1, round(len(early) * share))])])
