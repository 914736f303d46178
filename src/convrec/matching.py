"""The one definition of a hit, used by the rewards and by the evaluation (method, "Relevance")."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from convrec.data.catalog import YEAR_TOLERANCE, Catalog
from convrec.data.titles import fold, line, year_gap
from convrec.parsing import parse_list

Protocol = Literal["reward", "evaluation"]


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


def _own_title(truth: Truth, catalog: Catalog, tolerance: int) -> str:
    """Return the folded title that the catalog has for a truth, which may be written by an alias."""
    index = catalog.find(truth.title, truth.year, tolerance)
    return fold(truth.title if index is None else catalog.items[index].title)


def _nearest(title: str, year: int | None, open_truths: list[tuple[str, int | None]], tolerance: int) -> int | None:
    """Return the position of the open truth of this folded title with the nearest year, else None.

    A missing year agrees with any, but a year that is there is preferred.
    """
    near = [
        (None in (own_year, year), year_gap(own_year, year), position)
        for position, (own_title, own_year) in enumerate(open_truths)
        if own_title == title and year_gap(own_year, year) <= tolerance
    ]
    return min(near)[2] if near else None


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
    seen = catalog.indices_of_titles(seen_titles)
    open_truths = [(_own_title(truth, catalog, tolerance), truth.year) for truth in groundtruth]
    credits = [0] * num_ranks
    rank = 0
    for entry in parse_list(text, catalog):
        if rank >= num_ranks:
            break
        usable = False
        if entry is not None and entry.index is not None and entry.index not in seen:
            usable = True
            position = _nearest(fold(catalog.items[entry.index].title), entry.year, open_truths, tolerance)
            if position is not None:
                del open_truths[position]
                credits[rank] = 1
        if usable or protocol == "reward":
            rank += 1
    return credits
