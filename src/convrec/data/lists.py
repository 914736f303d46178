"""Fast reading of written lists for rewards and scores: the item of each line, and whether other lines differ.

It is the strict reading of `parsing`, without what it writes of a line that names no item. Such a line is parsed only
where that can matter.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Entry
from convrec.data.openings import UNSURE, Opened, openings
from convrec.data.parsing import EMPHASIS_OR_TAG, MAX_LINE, parse_line

_MARKS = {"", "- ", "* ", *(f"{number}. " for number in range(1, 100))}  # of a line that the catalog's line stands in
_BOLD = {f"{mark}**" for mark in _MARKS}
_BRACKETS = {"(", "["}


class WrittenList(NamedTuple):
    """A list as it was read; `exact` tells whether each line is a catalog line to the letter.

    `items`: the catalog index of each line's item, None where it names none; `years`: by rank, the written years of
    items whose lines are not to the letter. Of the lines that name none, blank ones aside, `others` are parsed;
    `unparsed` ones differ from each other and from those, and so do their `openings`.
    """

    items: list[int | None]
    years: dict[int, int | None]
    others: list[Entry]
    unparsed: list[str]
    openings: list[bytes]
    exact: bool


def read_list(text: str, catalog: Catalog, tolerance: int = YEAR_TOLERANCE) -> WrittenList:
    """Return what the lines of a text name (see `parsing.parse_list`)."""
    lines = text.split("\n")
    items = catalog.indices_of_lines(lines)
    num_left = items.count(None)
    if not num_left:
        return WrittenList(items, {}, [], [], [], True)
    ranks: Sequence[int] = range(num_left)
    if num_left < len(lines):
        ranks = [rank for rank, item in enumerate(items) if item is None]
        lines = [lines[rank] for rank in ranks]
    names = openings(lines) if len(text) <= MAX_LINE else [b""] * num_left
    if len(set(names)) == num_left and catalog.openings.keys().isdisjoint(names):
        return WrittenList(items, {}, [], lines, names, False)
    return _parsed(items, ranks, lines, names, catalog, tolerance)


def _parsed(
    items: list[int | None],
    ranks: Sequence[int],
    lines: list[str],
    names: list[bytes],
    catalog: Catalog,
    tolerance: int,
) -> WrittenList:
    """Return a list of which some lines have to be parsed; at `ranks` stand the `lines` that are no catalog lines."""
    years: dict[int, int | None] = {}
    others: list[Entry] = []
    repeated = {name for name, count in Counter(names).items() if count > 1} if len(set(names)) < len(names) else ()
    places = [at for at, name in enumerate(names) if name in catalog.openings or name in repeated]
    is_sure = True
    for at in reversed(places):
        line, name = lines[at], names[at]
        opened = catalog.openings.get(name)
        item = opened and _marked(line, opened)
        if item is not None:
            items[ranks[at]] = item
        elif name not in repeated and opened and _lacks(line, opened):
            continue
        elif entry := parse_line(line, catalog, tolerance):
            if entry.index is None:
                others.append(entry)
                is_sure &= name not in UNSURE and not EMPHASIS_OR_TAG.search(line)
            else:
                items[ranks[at]], years[ranks[at]] = entry.index, entry.year
        del lines[at], names[at]
    if not is_sure:  # an opening of these lines need not be that of its title
        others += [entry for line in lines if (entry := parse_line(line, catalog, tolerance))]
        lines, names = [], []
    return WrittenList(items, years, others, lines, names, False)


def _marked(line: str, opened: Opened) -> int | None:
    """Return the item whose own line stands after a plain list mark, whatever follows but another year."""
    own_line = opened.line
    start = line.find(own_line) if own_line else -1
    if start < 0:
        return None
    mark, rest = line[:start], line[start + len(own_line) :]
    if mark in _MARKS:
        return opened.item if rest.lstrip()[:1] not in _BRACKETS else None
    return opened.item if mark in _BOLD and rest.startswith("**") else None


def _lacks(line: str, opened: Opened) -> bool:
    """Tell whether a line without emphasis does not hold the only title that it can name."""
    if not line.isascii() or EMPHASIS_OR_TAG.search(line):
        return False
    return opened.title not in " ".join(line.split()).casefold()
