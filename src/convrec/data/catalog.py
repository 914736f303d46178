"""The catalog: its items, and the look-up of an item by a written title."""

import json
import re
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from convrec.data.parquet import parquet_rows
from convrec.data.quarantine import Quarantine, as_text
from convrec.data.titles import (
    LONGEST_TITLE,
    MISSING,
    fold,
    item_id,
    line,
    loose,
    natural,
    normalise_text,
    spellings,
    usable_id,
    usable_title,
)
from convrec.project.errors import InputError

Made = TypeVar("Made")
DUPLICATE = "duplicate item"  # reason of a quarantined row whose item an earlier row already defines
CATALOG_COLUMNS = ("item_id", "title", "year", "aliases", "metadata")
LONGEST_VALUE = 4  # words; a field with a longer value is prose, such as a plot
_IN_SERIES = re.compile(r"(.+?) ?\([^()]*#\d[^()]*\)")  # Goodreads: `Title (Series, #1)`
YEAR_TOLERANCE = 2  # maximum difference of years that still refer to the same film (method, "Relevance")


@dataclass(frozen=True)
class Item:
    """One recommendable item; `year` is None if it has none.

    `metadata` maps a field (genres, keywords, plot) to its text, `aliases` are other titles of the same item. `own_id`
    is the id that its catalog gives it; None where title and year are its id.
    """

    title: str
    year: int | None
    metadata: dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    aliases: tuple[str, ...] = field(default=(), compare=False, hash=False)
    own_id: str | None = None

    def __str__(self) -> str:
        return line(self.title, self.year)

    @property
    def id(self) -> str:
        """The item's id, the same in every version of the catalog (see `titles.item_id`)."""
        return self.own_id or item_id(self.title, self.year)

    def text(self) -> str:
        """Return title, year and metadata as one text, the input of the embedders."""
        return ". ".join([str(self), *(value for value in self.metadata.values() if value)])


def short_values(item: Item) -> dict[str, list[str]]:
    """Return the values of each metadata field that lists short values, such as genres; prose fields are left out."""
    fields = {name: [part.strip() for part in text.split(",") if part.strip()] for name, text in item.metadata.items()}
    return {
        name: values
        for name, values in fields.items()
        if values and all(len(value.split()) <= LONGEST_VALUE for value in values)
    }


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of a list: the title and year as written; `index` is its catalog index, if it has one.

    `part` is the part of an unknown title that is itself a title of the catalog, where that is all that is known.
    """

    title: str
    year: int | None
    index: int | None
    part: str = ""

    def __str__(self) -> str:
        return line(self.title, self.year)


class Catalog:
    """An ordered set of items, with look-up by id, and by written title and year.

    A look-up by title and year takes the item whose year is nearest, within a tolerance; else one without a year. A
    title that fits several items equally well names none of them. `folded_titles` are the items' own titles, folded.
    Raises `InputError` on an empty catalog or on two items of one id.
    """

    def __init__(self, items: Iterable[Item]):
        self.items: tuple[Item, ...] = tuple(items)
        if not self.items:
            raise InputError("catalog: it holds no item; give a file with at least one title")
        self._made: dict[Callable[[Catalog], Any], Any] = {}
        self.folded_titles = tuple(fold(item.title) for item in self.items)
        self._ids: dict[str, int] = {}
        self._titles: dict[str, list[int]] = {}  # folded title or alias -> indices, those of the title first
        for index, (item, folded) in enumerate(zip(self.items, self.folded_titles, strict=True)):
            if self._ids.setdefault(item.id, index) != index:
                raise InputError(f"catalog: {item} stands twice, with the id {item.id!r}; remove one of the two rows")
            self._titles.setdefault(folded, []).append(index)
        same_line: dict[tuple[str, int | None], list[int]] = {}  # by folded title and year
        for folded, indices in self._titles.items():
            for index in indices if len(indices) > 1 else ():
                same_line.setdefault((folded, self.items[index].year), []).append(index)
        self._same_line = sorted(indices for indices in same_line.values() if len(indices) > 1)
        unclear = {index for indices in self._same_line for index in indices}
        clear = [(item, index) for index, item in enumerate(self.items) if index not in unclear]
        self._lines = {str(item): index for item, index in clear}
        self._as_written = {(item.title, item.year): index for item, index in clear}
        for index, item in enumerate(self.items):
            for folded in set(map(fold, item.aliases)) - {self.folded_titles[index]}:
                self._titles.setdefault(folded, []).append(index)

    def __len__(self) -> int:
        return len(self.items)

    def once(self, make: "Callable[[Catalog], Made]") -> "Made":
        """Return what a function makes of the catalog: the same at each call, as long as the catalog lives.

        Threads that ask at once may each make it; the first result is kept.
        """
        if make not in self._made:
            self._made.setdefault(make, make(self))
        return self._made[make]

    def entry_of_line(self, text: str) -> Entry | None:
        """Return the item whose line is exactly `text`, else None: the parser's fast path, one look-up."""
        index = self._lines.get(text)
        return None if index is None else Entry(self.items[index].title, self.items[index].year, index)

    def index_of_line(self, text: str) -> int | None:
        """Return the index of the item whose line is exactly `text`, else None."""
        return self._lines.get(text)

    def indices_of_lines(self, lines: Iterable[str]) -> list[int | None]:
        """Return `index_of_line` of each."""
        return list(map(self._lines.get, lines))

    @property
    def folded_names(self) -> KeysView[str]:
        """The folded titles and aliases of all items."""
        return self._titles.keys()

    def index_of_id(self, item_id: str) -> int | None:
        """Return the index of the item of this id, else None."""
        return self._ids.get(item_id)

    def find(self, title: str, year: int | None, tolerance: int = YEAR_TOLERANCE) -> int | None:
        """Return the index of the item of this title, else with this alias; None where no item matches, or several do.

        Without a year, the title must be unambiguous: the one item of it, or the one that has no year.
        """
        if (index := self._as_written.get((title, year))) is not None:
            return index
        folded = fold(title)
        indices = self._titles.get(folded, [])
        if year is not None:
            indices = self._nearest(indices, year, tolerance)
        elif len(indices) > 1:
            indices = [index for index in indices if self.items[index].year is None]
        if len(indices) > 1:
            indices = [index for index in indices if self.folded_titles[index] == folded] or indices
            names = {(self.folded_titles[index], self.items[index].year) for index in indices}
            if len(names) < len(indices) or len({title for title, _ in names}) > 1:
                return None
        return indices[0] if indices else None  # same title and the same distance in years: the first one

    def _nearest(self, indices: Iterable[int], year: int, tolerance: int) -> list[int]:
        """Return the items with the nearest year, or else those without a year."""
        gaps, undated = [], []
        for index in indices:
            own = self.items[index].year
            if own is None:
                undated.append(index)
            elif abs(own - year) <= tolerance:
                gaps.append((abs(own - year), index))
        least = min(gaps)[0] if gaps else None
        return [index for gap, index in gaps if gap == least] or undated

    def indices_of_title(self, title: str) -> list[int]:
        """Return the indices of all items of this title, whatever their year, or else of the item of this line."""
        indices = self._titles.get(fold(title))
        if indices is None:
            index = self.index_of_line(title)
            return [] if index is None else [index]
        return indices

    def indices_of_titles(self, titles: Iterable[str]) -> set[int]:
        """Return the indices of all items of these titles or lines (see `indices_of_title`): those that were seen."""
        return {index for title in titles for index in self.indices_of_title(title)}

    def readings(self, title: str, year: int | None, tolerance: int = YEAR_TOLERANCE) -> list[int]:
        """Return the indices of the items that a title, in any spelling, can mean; the exact title comes first.

        With a year, the one whose year is nearest within `tolerance`, else one without a year, or none; in that very
        year, article and spaces do not matter. Without, all items of that title: "The Predator" is then no "Predator",
        which is another film. A spelling that is as near to items of several titles means none of them.
        """
        if year is None:
            if exact := self._titles.get(fold(title)):
                return sorted(exact)
        elif (index := self.find(title, year, tolerance)) is not None:
            return [index]
        by_spelling, by_loose_form = self._forms
        spelt = {index for spelling in spellings(title) for index in by_spelling.get(spelling, ())}
        if year is not None:
            same_year = (index for index in by_loose_form.get(loose(title), ()) if self.items[index].year == year)
            spelt = set(self._nearest(spelt.union(same_year), year, tolerance))
            return list(spelt) if len(spelt) == 1 else []
        return sorted(spelt) if len({self.folded_titles[index] for index in spelt}) == 1 else []

    @cached_property
    def _forms(self) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
        """The indices by each spelling of title and aliases, and by each loose form; made when first asked for."""
        by_spelling: dict[str, list[int]] = {}
        by_loose_form: dict[str, list[int]] = {}
        for index, item in enumerate(self.items):
            titles = (item.title, *item.aliases)
            for spelling in set[str]().union(*map(spellings, titles)):
                by_spelling.setdefault(spelling, []).append(index)
            for form in set(map(loose, titles)):
                by_loose_form.setdefault(form, []).append(index)
        return by_spelling, by_loose_form

    def check_lines(self) -> None:
        """Raise `InputError` if several items share a title and year: lists could not tell them apart."""
        if self._same_line:
            groups = [[self.items[index] for index in indices] for indices in self._same_line]
            shown = "; ".join(f"{one} (ids {one.id!r} and {other.id!r})" for one, other, *_ in groups[:3])
            first, column, addition = groups[0][0], "id", groups[0][0].id
            for name, value in first.metadata.items():
                if all(len({item.metadata.get(name) for item in group}) == len(group) for group in groups):
                    column, addition = name, value
            line_then = line(f"{first.title} - {addition}", first.year)
            raise InputError(
                f"catalog: {len(self._same_line)} titles stand for several items: {shown}; set data.line_column = "
                f"{column!r} (it tells them apart), as in `{line_then}`, or give the rows of one item one id"
            )

    def first_unseen(self, order: Iterable[int], seen_titles: Iterable[str], size: int) -> list[Item]:
        """Return the first `size` items in this order of indices whose title was not seen."""
        seen = self.indices_of_titles(seen_titles)
        return list(islice((self.items[index] for index in order if index not in seen), size))

    def to_frame(self) -> pd.DataFrame:
        """Return the canonical table (docs/data.md): `CATALOG_COLUMNS`; metadata are a JSON object."""
        return pd.DataFrame(
            {
                "item_id": [item.id for item in self.items],
                "title": [item.title for item in self.items],
                "year": pd.array([item.year for item in self.items], dtype="Int64"),
                "aliases": [list(item.aliases) for item in self.items],
                "metadata": [json.dumps(item.metadata, ensure_ascii=False) for item in self.items],
            }
        )

    @classmethod
    def read(cls, path: Path) -> "Catalog":
        """Return the catalog of a canonical Parquet file. Raises `InputError` for one with other cells."""
        items = []
        try:
            for own_id, title, year, aliases, metadata in map(itemgetter(*CATALOG_COLUMNS), parquet_rows(path)):
                number = None if year is None or year != year else int(year)
                fields = {**json.loads(metadata)}
                items.append(Item(title, number, fields, tuple(aliases), _own_id(own_id, title, number)))
            return cls(items)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise InputError(f"{path}: not a canonical catalog ({str(error)[:200]}); make it again") from None


def build_catalog(
    rows: Sequence[dict],
    metadata_fields: Sequence[str],
    quarantine: Quarantine,
    source: str = "catalog",
    line_column: str | None = None,
    keys: Sequence[str] = (),
) -> tuple[Catalog, list[int | None]]:
    """Return the catalog of raw rows, and the index of each row's item.

    A row has a `title`; `id`, `year`, `aliases` (a list, or texts with `|` between) and metadata are optional (see
    `title_of`). Rows of one id are one item, and so are those of one of the `keys`, unless it is ""; a row without id
    has its folded title and its year as id. The first row gives title and metadata, other titles are aliases; the
    others go to the quarantine as duplicates, so that they are counted. So do rows that cannot be used, whose index is
    None. A book `Title (Series, #1)` is also called `Title`, unless another item is. Raises `InputError` where no row
    can be used.
    """
    own_ids: dict[str, str] = {}  # by key
    found: dict[str, Item] = {}
    aliases: dict[str, list[str]] = {}
    ids: list[str | None] = []
    quarantine.count(source, len(rows))
    for number, row in enumerate(rows, start=1):
        try:
            title, year = title_of(row, line_column)
            # `|` divides values in lists, too: so the canonical table, read again, gives the same text
            metadata = {name: ", ".join(_texts("|".join(_texts(row.get(name))))) for name in metadata_fields}
            item = Item(title, year, metadata, (), _own_id(row.get("id"), title, year))
            titles = [title, *_titles(row, line_column)]
        except ValueError as problem:
            quarantine.add(source, number, str(problem), row)
            ids.append(None)
            continue
        key = keys[number - 1] if keys else ""
        own_id = own_ids.setdefault(key, item.id) if key else item.id
        ids.append(own_id)
        if found.setdefault(own_id, item) is not item:
            quarantine.add(source, number, DUPLICATE, item)
        aliases.setdefault(own_id, []).extend(titles)
    if not found:
        reasons = sorted({row["reason"] for row in quarantine.rows})
        raise InputError(
            f"{source}: none of its {len(rows)} rows can be used ({', '.join(reasons) or 'it is empty'}); "
            "every row needs a title"
        )
    order = {key: index for index, key in enumerate(found)}
    taken = {fold(title) for own in aliases.values() for title in own}
    for own in aliases.values():
        plain = (match[1] for title in own if (match := _IN_SERIES.fullmatch(title)))
        own += [title for title in plain if fold(title) not in taken]
    items = [replace(item, aliases=_other_titles(item.title, aliases[key])) for key, item in found.items()]
    return Catalog(items), [None if key is None else order[key] for key in ids]


def title_of(row: Mapping[str, Any], line_column: str | None = None) -> tuple[str, int | None]:
    """Return the title and year of a raw row (see `usable_title`).

    The text of `line_column`, or the id, becomes part of the title, as in "Hello - Adele", where the row has any and
    its title does not end in it.
    """
    title, year = usable_title(row.get("title"), row.get("year"))
    value = row.get(line_column) if line_column else None
    addition = usable_id(value, "id") if line_column == "id" else ", ".join(_texts(value))
    if addition and not fold(title).endswith(fold(f" - {addition}")):
        title, year = usable_title(f"{title} - {addition}", year)
    return title, year


def _titles(row: dict, line_column: str | None) -> list[str]:
    """Return the other titles of a row: its aliases, and its title without what `line_column` adds."""
    titles = _texts(row.get("aliases"))
    if any(len(title) > LONGEST_TITLE for title in titles):
        raise ValueError(f"an alias of more than {LONGEST_TITLE:,} characters")
    titles = list(map(natural, titles))
    return [*titles, usable_title(row.get("title"), row.get("year"))[0]] if line_column else titles


def _own_id(value: object, title: str, year: int | None) -> str | None:
    """Return the id that a row gives; None where it gives none, or the one that title and year make."""
    own_id = usable_id(value, "id")
    return None if own_id in ("", item_id(title, year)) else own_id


def _texts(value: object) -> list[str]:
    """Return the texts of a field: a list, or one text with `|` between them; what is missing gives none."""
    if not isinstance(value, (list, tuple)):
        value = as_text(value).split("|") if (value or value == 0) and value == value else []
    texts = (as_text(text) for text in value if text is not None and text == text)
    clean = (text.encode(errors="replace").decode().replace("\0", " ") for text in texts)
    folded = (" ".join(normalise_text(text).split()) for text in clean)
    return [text for text in folded if text.casefold() not in MISSING]


def _other_titles(title: str, titles: Iterable[str]) -> tuple[str, ...]:
    """Return the titles that differ from the item's own, each once."""
    others: dict[str, str] = {}
    for other in titles:
        others.setdefault(fold(other), other)
    others.pop(fold(title), None)
    return tuple(others.values())
