"""The one definition of a hit, used by the rewards and by the evaluation (method, "Relevance")."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, fold
from convrec.parsing import Entry, parse_list

Protocol = Literal["reward", "evaluation"]


class Truth(NamedTuple):
    """One ground-truth item."""

    title: str
    year: int


def _nearest(entry: Entry, open_truths: list[Truth], tolerance: int) -> Truth | None:
    """Return the open truth of this title with the nearest year (a missing year matches any), else None."""
    title = fold(entry.title)
    near = [
        (abs(truth.year - entry.year) if entry.year is not None else 0, position)
        for position, truth in enumerate(open_truths)
        if fold(truth.title) == title and (entry.year is None or abs(truth.year - entry.year) <= tolerance)
    ]
    return open_truths[min(near)[1]] if near else None


def relevance(
    text: str,
    groundtruth: Sequence[Truth],
    seen_titles: Sequence[str],
    catalog: Catalog,
    num_ranks: int,
    protocol: Protocol,
    tolerance: int = YEAR_TOLERANCE,
) -> list[int]:
    """Return rel_1..rel_N of one written list: 1 where the rank is a hit, else 0.

    A hit is in the ground truth, in the catalog, not seen, and not credited at an earlier rank. `reward` keeps
    every line at its rank; `evaluation` first drops blank, seen and out-of-catalog lines and closes the ranks.

    Shape: a list of length `num_ranks`.
    """
    seen = {fold(title) for title in seen_titles}
    open_truths = list(groundtruth)
    credits = [0] * num_ranks
    rank = 0
    for entry in parse_list(text, catalog):
        if rank >= num_ranks:
            break
        usable = entry is not None and entry.index is not None and fold(entry.title) not in seen
        if usable and entry is not None:
            truth = _nearest(entry, open_truths, tolerance)
            if truth is not None:
                open_truths.remove(truth)
                credits[rank] = 1
        if usable or protocol == "reward":
            rank += 1
    return credits
