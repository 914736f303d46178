"""The prompts that get a demonstration, with the items that they liked and saw."""

from typing import Any

import numpy as np
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.conversations import truths
from convrec.errors import InputError

Row = dict[str, Any]


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


def count_positives(rows: list[Row], prompts: list[Row], catalog: Catalog) -> sparse.csr_array:
    """Return how often each item is ground truth of each prompt, over all its rows. Shape: (prompts, C)."""
    position = {row["prompt_id"]: index for index, row in enumerate(prompts)}
    pairs = [
        (position[row["prompt_id"]], index)
        for row in rows
        if row["prompt_id"] in position
        for index in (catalog.find(truth.title, truth.year) for truth in truths(row))
        if index is not None
    ]
    at = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    counts = np.ones(len(pairs), dtype=np.float32)
    return sparse.csr_array((counts, (at[0], at[1])), shape=(len(prompts), len(catalog)))  # equal places are summed


def seen_items(prompts: list[Row], catalog: Catalog) -> list[list[int]]:
    """Return the catalog indices of each prompt's seen titles, whatever their year."""
    return [[i for title in row["seen_titles"] for i in catalog.indices_of_title(title)] for row in prompts]
