"""The catalog: which items exist, and whether a written title names one of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

import pandas as pd

from convrec.data.quarantine import Quarantine, as_text
from convrec.data.titles import fold, item_id, line, loose, spellings, usable_title
from convrec.errors import InputError

YEAR_TOLERANCE = 2  # years that differ by at most this many still name the same film (method, "Relevance")


@dataclass(frozen=True)
class Item:
    """One recommendable item; its year is None where it has none.

    `metadata` maps a field (genres, keywords, plot) to its text, `aliases` are other titles of the same item.
    """

    title: str
    year: int | None
    metadata: dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    aliases: tuple[str, ...] = field(default=(), compare=False, hash=False)

    def __str__(self) -> str:
        return line(self.title, self.year)

    @property
    def id(self) -> str:
        """What identifies the item in every version of the catalog (see `titles.item_id`)."""
        return item_id(self.title, self.year)

    def text(self) -> str:
        """Return title, year and metadata as one text, the input of the embedders."""
        return ". ".join([str(self), *(value for value in self.metadata.values() if value)])


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
    """An ordered set of items, with look-up by written title and year.

    A look-up by title and year takes the item whose year is nearest, within a tolerance; else one without a year.
    `folded_titles` are the items' own titles, folded. Raises `InputError` on an empty catalog or on two items of the
    same folded title and year.
    """

    def __init__(self, items: Iterable[Item]):
        self.items: tuple[Item, ...] = tuple(items)
        if not self.items:
            raise InputError("catalog: it holds no item; give a file with at least one title")
        self._titles: dict[str, list[int]] = {}  # folded title or alias -> indices, those of the title first
        self.folded_titles = tuple(fold(item.title) for item in self.items)
        self._entries = {str(item): Entry(item.title, item.year, index) for index, item in enumerate(self.items)}
        self._spellings: dict[str, list[int]] = {}
        self._loose: dict[str, list[int]] = {}
        self._dated: dict[tuple[str, int | None], int] = {}  # of folded title and year
        for index, item in enumerate(self.items):
            folded = self.folded_titles[index]
            if (folded, item.year) in self._dated:
                raise InputError(f"catalog: {item} stands twice; remove one of the two rows")
            self._dated[folded, item.year] = index
            _enter(self._titles, folded, index)
            for title in (item.title, *item.aliases):
                _enter(self._loose, loose(title), index)
                for spelling in spellings(title):
                    _enter(self._spellings, spelling, index)
        for index, item in enumerate(self.items):
            for alias in item.aliases:
                if fold(alias) != self.folded_titles[index]:
                    _enter(self._titles, fold(alias), index)

    def __len__(self) -> int:
        return len(self.items)

    def entry_of_line(self, text: str) -> Entry | None:
        """Return the item whose line is exactly `text`, else None: the parser's fast path, one look-up."""
        return self._entries.get(text)

    def entries_of_lines(self, lines: Iterable[str]) -> list[Entry | None]:
        """Return `entry_of_line` of each."""
        return list(map(self._entries.get, lines))

    def index_of_line(self, text: str) -> int | None:
        """Return the index of the item whose line is exactly `text`, else None."""
        entry = self._entries.get(text)
        return None if entry is None else entry.index

    def find(self, title: str, year: int | None, tolerance: int = YEAR_TOLERANCE) -> int | None:
        """Return the index of the item of this title, else with this alias; None where no item matches.

        Without a year, the title must be unambiguous: the one item of it, or the one that has no year.
        """
        folded = fold(title)
        if year is not None and (same := self._dated.get((folded, year))) is not None:
            return same
        indices = self._titles.get(folded, [])
        return self._unambiguous(indices, folded) if year is None else self._nearest(indices, year, tolerance)

    def _unambiguous(self, indices: Sequence[int], title: str) -> int | None:
        if len(indices) > 1:
            indices = [index for index in indices if self.items[index].year is None]
            indices = [index for index in indices if self.folded_titles[index] == title] or indices
        return indices[0] if len(indices) == 1 else None

    def _nearest(self, indices: Iterable[int], year: int, tolerance: int) -> int | None:
        """Return the first of those whose year is nearest, else the first without a year."""
        gaps, undated = [], []
        for index in indices:
            own = self.items[index].year
            if own is None:
                undated.append(index)
            elif abs(own - year) <= tolerance:
                gaps.append((abs(own - year), index))
        return min(gaps, key=itemgetter(0))[1] if gaps else next(iter(undated), None)

    def indices_of_title(self, title: str) -> list[int]:
        """Return the indices of all items of this title, whatever their year."""
        return self._titles.get(fold(title), [])

    def indices_of_titles(self, titles: Iterable[str]) -> set[int]:
        """Return the indices of all items of these titles, whatever their year: of titles that were seen."""
        return {index for title in titles for index in self._titles.get(fold(title), ())}

    def readings(self, title: str, year: int | None, tolerance: int = YEAR_TOLERANCE) -> list[int]:
        """Return the indices of the items that a title, in any spelling, can mean.

        With a year, the one whose year is nearest within `tolerance`, else one without a year, or none; in that very
        year, article and spaces do not matter. Without, all items of that title: "The Predator" is then no "Predator",
        which is another film.
        """
        spelt = sorted({index for spelling in spellings(title) for index in self._spellings.get(spelling, ())})
        if year is None:
            return spelt
        same_year = [index for index in self._loose.get(loose(title), ()) if self.items[index].year == year]
        found = self._nearest([*spelt, *same_year], year, tolerance)
        return [] if found is None else [found]

    def first_unseen(self, order: Iterable[int], seen_titles: Iterable[str], size: int) -> list[Item]:
        """Return the first `size` items in this order of indices whose title was not seen."""
        seen = self.indices_of_titles(seen_titles)
        return list(islice((self.items[index] for index in order if index not in seen), size))

    def to_frame(self) -> pd.DataFrame:
        """Return the canonical table (docs/data.md): item_id, title, year, aliases, metadata (a JSON object)."""
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
    def from_frame(cls, frame: pd.DataFrame) -> "Catalog":
        """Return the catalog of a canonical table (see `to_frame`)."""
        rows = zip(frame["title"], frame["year"], frame["metadata"], frame["aliases"], strict=True)
        return cls(
            Item(title, None if pd.isna(year) else int(year), json.loads(metadata), tuple(aliases))
            for title, year, metadata, aliases in rows
        )


def _enter(table: dict[str, list[int]], key: str, index: int) -> None:
    entries = table.setdefault(key, [])
    if not entries or entries[-1] != index:  # items come in order: an index stands last if it stands there at all
        entries.append(index)


def build_catalog(
    rows: Sequence[dict], metadata_fields: Sequence[str], quarantine: Quarantine, source: str = "catalog"
) -> tuple[Catalog, list[int | None]]:
    """Return the catalog of raw rows, and the index of each row's item.

    A row has a `title`; `year`, `aliases` (a list, or texts with `|` between) and metadata are optional. A title
    that ends in a year in brackets has that year. Rows of one item id are one item: the first gives its title and
    metadata, the other spellings are its aliases. Rows that cannot be used go to the quarantine, their index is None.
    Raises `InputError` where no row can be used.
    """
    found: dict[str, Item] = {}
    aliases: dict[str, list[str]] = {}
    ids: list[str | None] = []
    quarantine.count(source, len(rows))
    for number, row in enumerate(rows, start=1):
        try:
            title, year = usable_title(row.get("title"), row.get("year"))
        except ValueError as problem:
            quarantine.add(source, number, str(problem), _shown(row))
            ids.append(None)
            continue
        key = item_id(title, year)
        ids.append(key)
        if key not in found:
            found[key] = Item(title, year, _metadata(row, metadata_fields))
        elif fold(title) == fold(found[key].title):
            quarantine.add(source, number, "duplicate item", found[key])
        aliases.setdefault(key, []).extend([title, *_texts(row.get("aliases"))])
    if not found:
        reasons = sorted({row["reason"] for row in quarantine.rows})
        raise InputError(
            f"{source}: none of its {len(rows)} rows can be used ({', '.join(reasons) or 'it is empty'}); "
            "every row needs a title"
        )
    order = {key: index for index, key in enumerate(found)}
    items = [
        Item(item.title, item.year, item.metadata, _other_titles(item.title, aliases[key]))
        for key, item in found.items()
    ]
    return Catalog(items), [None if key is None else order[key] for key in ids]


def _texts(value: object) -> list[str]:
    """Return the texts of a field: a list, or one text with `|` between them; what is missing gives none."""
    if not isinstance(value, (list, tuple)):
        value = as_text(value).split("|") if (value or value == 0) and value == value else []
    texts = (as_text(text) for text in value if text is not None and text == text)
    clean = (" ".join(text.encode(errors="replace").decode().replace("\0", " ").split()) for text in texts)
    return [text for text in clean if text]


def _metadata(row: dict, fields: Sequence[str]) -> dict[str, str]:
    # `|` divides values in lists, too: so the canonical table, read again, gives the same text
    return {name: ", ".join(_texts("|".join(_texts(row.get(name))))) for name in fields}


def _other_titles(title: str, titles: Iterable[str]) -> tuple[str, ...]:
    """Return the titles that differ from the item's own, each once."""
    others = {fold(other): other for other in reversed(list(titles))}
    others.pop(fold(title), None)
    return tuple(reversed(others.values()))


def _shown(row: dict) -> str:
    title, year = as_text(row.get("title")), row.get("year")
    return f"{title} ({as_text(year)})" if year else title
