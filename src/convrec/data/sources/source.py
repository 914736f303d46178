"""What every source of data returns, and several sources as one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from convrec.data.catalog import Catalog, Item
from convrec.data.schemas import conform
from convrec.data.titles import normalise_unicode, usable_title
from convrec.project.errors import InputError


class Source(NamedTuple):
    """The catalog and the rows of a source.

    `rows` have the canonical columns. `splits` names each row's split, if the source has splits of its own.
    `world` has the oracle's lists and the tastes of the embedded world.
    """

    catalog: Catalog
    rows: pd.DataFrame
    splits: pd.Series | None = None
    world: pd.DataFrame | None = None

    def compatible(self) -> "Source":
        """Return the source with titles in compatible Unicode (NFKC): `Alien3` for `Alien³`, which becomes an alias.

        Raises `InputError` if two items then have the same title and year.
        """
        items = [_compatible(item) for item in self.catalog.items]
        lines = {str(old): str(new) for old, new in zip(self.catalog.items, items, strict=True)}
        columns = {name: self.rows[name].to_list() for name in ("seen_titles", "disliked_titles")}
        rows = {name: [[lines.get(one, one) for one in titles] for titles in of] for name, of in columns.items()}
        return self._replace(catalog=Catalog(items), rows=self.rows.assign(**rows))


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
        if source.splits is not None:
            raise InputError(f"data.source = {list(sources)}: {name!r} has splits of its own; use it alone")
    parts = [conform(first.rows.reset_index(drop=True))]
    for name, source in others:
        if not source.rows.empty:
            rows = conform(source.rows.reset_index(drop=True))
            parts.append(rows.assign(**{key: f"{name}/" + rows[key] for key in ("conversation_id", "prompt_id")}))
    return first._replace(rows=pd.concat(parts, ignore_index=True))
