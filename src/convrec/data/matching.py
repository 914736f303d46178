"""The definition of a hit, shared by rewards and evaluation (method, "Relevance")."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

from convrec.data.catalog import YEAR_TOLERANCE, Catalog
from convrec.data.parsing import WrittenList, read_list
from convrec.data.titles import fold, line, usable_title, year_gap

Protocol = Literal["reward", "evaluation"]
UNKNOWN = -1  # stands, as every negative number, for the catalog index of a truth whose id the catalog lacks


class Truth(NamedTuple):
    """One ground-truth item; its year is None where it has none."""

    title: str
    year: int | None

    @classmethod
    def of(cls, value: "Mapping[str, Any] | Sequence[Any]") -> "Truth":
        """Return the truth that a mapping `{title, year}` or a pair holds (see `usable_title`)."""
        title, year = (value["title"], value["year"]) if isinstance(value, (dict, Mapping)) else value
        return cls(*usable_title(title, year))

    def __str__(self) -> str:
        return line(self.title, self.year)


def truth_key(truth: Truth | int, catalog: Catalog, tolerance: int = YEAR_TOLERANCE) -> int | Truth:
    """Return what truths of the same item share: its catalog index, or where it has none its folded title and year."""
    if isinstance(truth, int):
        return truth
    title, year = truth
    index = catalog.find(title, year, tolerance)  # a truth may be written by an alias
    return Truth(fold(title), year) if index is None else index


class Target(NamedTuple):
    """What the lists of one row are judged against, as the catalog has it.

    `truths`: position and year of the truths, by the folded title that the catalog has for them; one that is given by
    its catalog index stands under that. `wanted`: the items that can be one of them. `seen`: indices of seen items,
    `seen_titles`: folded.
    """

    num_truths: int
    truths: dict[str | int, list[tuple[int, int | None]]]
    wanted: set[int]
    seen: set[int]
    seen_titles: frozenset[str]


def make_target(
    groundtruth: Sequence[Truth | int],
    seen_titles: Sequence[str],
    catalog: Catalog,
    tolerance: int = YEAR_TOLERANCE,
    seen_items: AbstractSet[int] = frozenset(),
) -> Target:
    """Return the target of a row; `seen_items` are seen beside those of the titles.

    Its truths are a set of items: one that is given twice, or by its title and an alias, is one truth.
    """
    truths: dict[str | int, list[tuple[int, int | None]]] = {}
    wanted: set[int] = set()
    distinct: dict[int | Truth, Truth | int] = {}
    for truth in groundtruth:
        distinct.setdefault(truth_key(truth, catalog, tolerance), truth)
    for position, (key, truth) in enumerate(distinct.items()):
        if isinstance(truth, int):
            truths.setdefault(truth, []).append((position, None))
            wanted.add(truth)
            continue
        own_title, (_, year) = catalog.folded_titles[key] if isinstance(key, int) else key.title, truth
        truths.setdefault(own_title, []).append((position, year))
        wanted.update(catalog.indices_of_title(own_title))
    seen = catalog.indices_of_titles(seen_titles).union(seen_items)
    return Target(len(distinct), truths, wanted, seen, frozenset(map(fold, seen_titles)))


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
    written: WrittenList,
    target: Target,
    catalog: Catalog,
    num_ranks: int,
    protocol: Protocol,
    tolerance: int = YEAR_TOLERANCE,
) -> bytearray:
    """Return rel_1..rel_N of a list: 1 where the rank is a hit, else 0.

    A hit is in the ground truth, in the catalog, not seen, and not credited at an earlier rank. `reward` keeps
    every line at its rank; `evaluation` first drops blank, seen and out-of-catalog lines and closes the ranks. A truth
    that was given by its id is the catalog index of that item, or negative: only that item hits it, whatever its year.

    Shape: `num_ranks` bytes.
    """
    hits, items, seen = bytearray(num_ranks), written.items, target.seen
    if target.wanted.isdisjoint(items):
        return hits
    open_truths = {key: list(truths) for key, truths in target.truths.items()}
    ranks: Sequence[int] = range(len(items))
    if protocol == "evaluation":
        ranks = [rank for rank in ranks if items[rank] is not None and items[rank] not in seen]
    for place, rank in enumerate(ranks[:num_ranks]):
        index = items[rank]
        if index is None or index not in target.wanted or index in seen:
            continue
        if truths := open_truths.get(index):
            truths.pop()
            hits[place] = 1
            continue
        truths = open_truths.get(catalog.folded_titles[index], [])
        credited = _nearest(written.years.get(rank, catalog.items[index].year), truths, tolerance)
        if credited:
            truths.remove(credited)
            hits[place] = 1
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
    target = make_target(groundtruth, seen_titles, catalog, tolerance)
    return list(judge(read_list(text, catalog, tolerance), target, catalog, num_ranks, protocol, tolerance))
