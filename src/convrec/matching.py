"""The one definition of a hit, used by the rewards and by the evaluation (method, "Relevance")."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Entry
from convrec.data.titles import fold, line, year_gap
from convrec.parsing import parse_list

Protocol = Literal["reward", "evaluation"]


UNKNOWN = -1  # in place of the catalog index of a truth whose id the catalog lacks


class Truth(NamedTuple):
    """One ground-truth item; its year is None where it has none."""

    title: str
    year: int | None

    @classmethod
    def of(cls, value: "Mapping[str, Any] | Sequence[Any]") -> "Truth":
        """Return the truth that a mapping `{title, year}` or a pair holds."""
        title, year = (value["title"], value["year"]) if isinstance(value, Mapping) else value
        return cls(title, None if year is None or year == "" else int(year))

    def __str__(self) -> str:
        return line(self.title, self.year)


def _open_truths(
    groundtruth: Sequence[Truth | int], catalog: Catalog, tolerance: int
) -> dict[str | int, list[tuple[int, int | None]]]:
    """Return position and year of the truths, by the folded title that the catalog has for them.

    A truth may be written by an alias. One that is given by its catalog index stands under that.
    """
    found: dict[str | int, list[tuple[int, int | None]]] = {}
    for position, truth in enumerate(groundtruth):
        if isinstance(truth, int):
            found.setdefault(truth, []).append((position, None))
            continue
        title, year = truth
        index = catalog.find(title, year, tolerance)
        own_title = fold(title) if index is None else catalog.folded_titles[index]
        found.setdefault(own_title, []).append((position, year))
    return found


def _nearest(year: int | None, truths: list[tuple[int, int | None]], tolerance: int) -> tuple[int, int | None] | None:
    """Return the truth of the nearest year among those of one title, else None.

    A missing year agrees with any, but a year that is there is preferred.
    """
    near = [
        (None in (own_year, year), year_gap(own_year, year), position, own_year)
        for position, own_year in truths
        if year_gap(own_year, year) <= tolerance
    ]
    return min(near)[2:] if near else None


def judge(
    entries: Sequence[Entry | None],
    groundtruth: Sequence[Truth | int],
    seen: AbstractSet[int],
    catalog: Catalog,
    num_ranks: int,
    protocol: Protocol,
    tolerance: int = YEAR_TOLERANCE,
) -> list[int]:
    """Return rel_1..rel_N of a parsed list: 1 where the rank is a hit, else 0; `seen` holds catalog indices.

    A hit is in the ground truth, in the catalog, not seen, and not credited at an earlier rank. `reward` keeps
    every line at its rank; `evaluation` first drops blank, seen and out-of-catalog lines and closes the ranks. A truth
    that was given by its id is the catalog index of that item, or `UNKNOWN`: only that item hits it, whatever its year.

    Shape: a list of length `num_ranks`.
    """
    open_truths = _open_truths(groundtruth, catalog, tolerance)
    titles, hits, rank = catalog.folded_titles, [0] * num_ranks, 0
    for entry in entries:
        if rank == num_ranks:
            break
        if entry is None or (index := entry.index) is None or index in seen:
            rank += protocol == "reward"
            continue
        if truths := open_truths.get(index):
            truths.pop()
            hits[rank] = 1
        elif (truths := open_truths.get(titles[index])) and (credited := _nearest(entry.year, truths, tolerance)):
            truths.remove(credited)
            hits[rank] = 1
        rank += 1
    return hits


def relevance(
    text: str,
    groundtruth: Sequence[Truth | int],
    seen_titles: Sequence[str],
    catalog: Catalog,
    num_ranks: int,
    protocol: Protocol,
    tolerance: int = YEAR_TOLERANCE,
) -> list[int]:
    """Return rel_1..rel_N of one written list (see `judge`). Shape: a list of length `num_ranks`."""
    entries, seen = parse_list(text, catalog, tolerance), catalog.indices_of_titles(seen_titles)
    return judge(entries, groundtruth, seen, catalog, num_ranks, protocol, tolerance)
