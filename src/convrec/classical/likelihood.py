"""What the fits to what people liked are made of: the items that were liked, those that are closed, and the loss."""

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse

from convrec.classical.scores import flat_entries
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, truth_items
from convrec.data.row_files import chosen_rows, column_of
from convrec.data.wish_reader import wishes_of
from convrec.data.wishes import apply


def count_positives(rows: Sequence[Row], prompts: Sequence[Row], catalog: Catalog) -> sparse.csr_array:
    """Return how often each item is ground truth of each prompt, over all its rows. Shape: (prompts, C)."""
    position = {row["prompt_id"]: index for index, row in enumerate(prompts)}
    own = chosen_rows(rows, column_of(rows, "prompt_id").isin([*position]).to_numpy(bool))
    pairs = [(position[row["prompt_id"]], index) for row in own for index in truth_items(row, catalog)]
    at = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    counts = np.ones(len(pairs), dtype=np.float32)
    return sparse.csr_array((counts, (at[0], at[1])), shape=(len(prompts), len(catalog)))  # equal places are summed


def closed_items(prompts: Sequence[Row], catalog: Catalog, length: int) -> "list[array[int]]":
    """Return the catalog indices of what a list of `length` items may not hold: seen ones, and those against wishes."""
    found = []
    for row in prompts:
        is_open = np.ones(len(catalog), dtype=bool)
        is_open[list(catalog.indices_of_titles(row["seen_titles"]))] = False
        left, _ = apply(wishes_of(row, catalog), is_open, length)
        found.append(array("i", np.flatnonzero(~left).astype(np.int32).tobytes()))  # 4 bytes each
    return found


def multinomial_residual(scores: torch.Tensor, positives: sparse.csr_array) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the negative multinomial log-likelihood of the positives, summed over the rows, and its gradient.

    With n positives in a row, the gradient by the scores is n · softmax(scores) - positives.

    Shape: scores, positives (rows, C); returns a scalar and (rows, C).
    """
    positions, counts = flat_entries(positives)
    positions, counts = positions.to(scores.device), counts.to(scores)
    totals = torch.from_numpy(positives.sum(axis=1)).to(scores)
    log_probability = torch.log_softmax(scores, dim=1)
    loss = -(log_probability.view(-1)[positions] * counts).sum()
    residual = log_probability.exp_().mul_(totals[:, None])
    residual.view(-1)[positions] -= counts
    return loss, residual
