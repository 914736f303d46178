"""The prompts that get a demonstration."""

import numpy as np

from convrec.data.conversations import Row
from convrec.project.errors import InputError


def choose_prompts(prompts: list[Row], until: str | None, share: float, seed: int) -> list[Row]:
    """Return this share of the prompts up to the end of month `until`, in their order."""
    if until is not None and not all(row["date"] for row in prompts):
        raise InputError(f"demonstrations.until = {until!r}: a training row has no date; give null")
    early = [row for row in prompts if until is None or str(row["date"])[:7] <= until]
    if not early:
        raise InputError(
            f"demonstrations.until = {until!r}: no training prompt is as early; give a later month or null"
        )
    order = np.random.default_rng(seed).permutation(len(early))
    return [early[i] for i in sorted(order[: max(1, round(len(early) * share))])]
