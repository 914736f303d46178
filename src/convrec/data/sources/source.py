"""What every source of data returns, and several sources as one."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from convrec.data.catalog import Catalog, Item
from convrec.data.conversations import SPLITS, require_filled
from convrec.data.row_files import Row, Rows
from convrec.data.schemas import spooled
from convrec.data.titles import normalise_unicode, usable_title
from convrec.project.errors import InputError


class Source(NamedTuple):
    """The catalog and the rows of a source.

    `rows` are what `spooled` makes of canonical rows; these name their `split`, if the source has splits of its own.
    `world` has the oracle's lists and the tastes of the embedded world.
    """

    catalog: Catalog
    rows: Rows
    world: pd.DataFrame | None = None

    @property
    def has_splits(self) -> bool:
        """Whether the source has splits of its own."""
        return len(self.rows) > 0 and self.rows[0]["split"] != ""

    def filled(self, remedy: str) -> "Source":
        """Return the source. Raises `InputError`, with the remedy, where one of its own splits has no row."""
        require_filled({name: self.rows[self.rows["split"] == name] for name in SPLITS}, remedy)
        return self

    def compatible(self) -> "Source":
        """Return the source with titles in compatible Unicode (NFKC): `Alien3` for `Alien³`, which becomes an alias.

        Raises `InputError` if two items then have the same title and year.
        """
        items = [_compatible(item) for item in self.catalog.items]
        lines = {str(old): str(new) for old, new in zip(self.catalog.items, items, strict=True)}
        names = ("seen_titles", "disliked_titles")
        rows = (row | {name: [lines.get(one, one) for one in row[name]] for name in names} for row in self.rows)
        return self._replace(catalog=Catalog(items), rows=spooled(rows))


def _compatible(item: Item) -> Item:
    title, year = usable_title(normalise_unicode("NFKC", item.title), item.year)
    title = normalise_unicode("NFKC", title)  # which divides SARA AM
    return item if title == item.title else replace(item, title=title, year=year, aliases=(item.title, *item.aliases))


def combine(sources: Mapping[str, Source]) -> Source:
    """Return the catalog and the world of the first source, and the rows of all, in order.

    Ids of the rows of other sources begin with the source's name, because two sources may use the same ids. Raises
    `InputError` if a source has splits of its own.
    """
    (_, first), *others = sources.items()
    if not others:
        return first
    for name, source in sources.items():
        if source.has_splits:
            raise InputError(f"data.source = {list(sources)}: {name!r} has splits of its own; use it alone")

    def rows() -> Iterator[Row]:
        yield from first.rows
        for name, source in others:
            for row in source.rows:
                yield row | {key: f"{name}/{row[key]}" for key in ("conversation_id", "prompt_id")}

    return first._replace(rows=spooled(rows()))
