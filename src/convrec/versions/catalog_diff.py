"""The difference between two versions of a catalog: items added, removed, renamed, or with changed metadata."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd

from convrec.data.catalog import YEAR_TOLERANCE
from convrec.data.titles import line, normalise
from convrec.errors import InputError
from convrec.text import cut, listing, plain

Reason = Literal["spelling", "year", "alias", "merged"]
_NAME_WIDTH = 41  # columns of each name in a line with two names
_VALUE_WIDTH = 24  # columns of a metadata value in a line of text


@dataclass(frozen=True)
class ItemName:
    """The id, title and year of an item in a catalog."""

    item_id: str
    title: str
    year: int | None

    def __str__(self) -> str:
        return line(self.title, self.year)

    def to_json(self) -> dict[str, Any]:
        return {"item_id": self.item_id, "title": self.title, "year": self.year}


@dataclass(frozen=True)
class Renamed:
    """One item with two names, and the reason why they count as one item.

    - `spelling`: title and year are the same except for the spelling.
    - `year`: the title is the same, and the year is close or was unknown.
    - `alias`: one title is an alias of the other item.
    - `merged`: the title is an alias of an item in both versions, so two items of the old version became one.
    """

    old: ItemName
    new: ItemName
    reason: Reason

    def __str__(self) -> str:
        old, new = (cut(plain(str(name)), _NAME_WIDTH) for name in (self.old, self.new))
        return f"{old} -> {new}{' (merged)' if self.reason == 'merged' else ''}"

    def to_json(self) -> dict[str, Any]:
        return {"old": self.old.to_json(), "new": self.new.to_json(), "reason": self.reason}


@dataclass(frozen=True)
class Changed:
    """Changed metadata of an item: old and new text by field (None if missing), and aliases added and removed."""

    item: ItemName
    fields: dict[str, tuple[str | None, str | None]]
    aliases_added: tuple[str, ...]
    aliases_removed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "item": self.item.to_json(),
            "fields": {name: {"old": old, "new": new} for name, (old, new) in self.fields.items()},
            "aliases": {"added": list(self.aliases_added), "removed": list(self.aliases_removed)},
        }

    def __str__(self) -> str:
        parts = []
        for name, (old, new) in self.fields.items():
            texts = ["none" if text is None else f'"{cut(plain(text), _VALUE_WIDTH)}"' for text in (old, new)]
            parts.append(f"{name} {texts[0]} -> {texts[1]}")
        parts += [f'alias "{alias}" added' for alias in self.aliases_added]
        parts += [f'alias "{alias}" removed' for alias in self.aliases_removed]
        return f"{self.item}: {'; '.join(parts)}"


@dataclass(frozen=True)
class CatalogDiff:
    """The difference between two catalogs; lists are sorted by `item_id`, by the new one if there are two.

    Every item is in one category, except that a renamed item can also be changed. The new catalog's items are those
    unchanged, added, renamed (without `merged`, because the item they merged into is counted itself), and changed
    without a new name.
    """

    before: int
    after: int
    added: tuple[ItemName, ...]
    removed: tuple[ItemName, ...]
    renamed: tuple[Renamed, ...]
    changed: tuple[Changed, ...]
    unchanged: int

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.renamed or self.changed)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values in a stable order."""
        return {
            "before": self.before,
            "after": self.after,
            "unchanged": self.unchanged,
            "added": [item.to_json() for item in self.added],
            "removed": [item.to_json() for item in self.removed],
            "renamed": [pair.to_json() for pair in self.renamed],
            "changed": [item.to_json() for item in self.changed],
        }

    def to_text(self, limit: int = 20) -> str:
        """Return a summary line, then up to `limit` items of each category."""
        if self.is_empty:
            return f"Catalog: {self.after:,} items, no change"
        numbers = ", ".join(
            f"{len(getattr(self, name)):,} {name}" for name in ("added", "removed", "renamed", "changed")
        )
        lines = [
            f"Catalog: {self.before:,} -> {self.after:,} items: {numbers}, {self.unchanged:,} unchanged",
            *listing("added", [str(item) for item in self.added], limit),
            *listing("removed", [str(item) for item in self.removed], limit),
            *listing("renamed", [str(pair) for pair in self.renamed], limit),
            *listing(f"changed ({self._changed_fields()})", [str(item) for item in self.changed], limit),
        ]
        return "\n".join(lines)

    def _changed_fields(self) -> str:
        counts = Counter(name for item in self.changed for name in item.fields)
        counts["aliases"] += sum(bool(item.aliases_added or item.aliases_removed) for item in self.changed)
        return ", ".join(f"{plain(name)} {number:,}" for name, number in counts.most_common() if number)


class _Item(NamedTuple):
    name: ItemName
    aliases: frozenset[str]
    metadata: str  # a JSON object, parsed only if the two texts differ

    @property
    def item_id(self) -> str:
        return self.name.item_id


class _Names:
    """Items by normalised title and by normalised alias."""

    def __init__(self, items: Iterable[_Item]):
        self.titles: dict[str, list[_Item]] = {}
        self.aliases: dict[str, list[_Item]] = {}
        for item in items:
            self.titles.setdefault(normalise(item.name.title), []).append(item)
            for alias in {normalise(alias) for alias in item.aliases}:
                self.aliases.setdefault(alias, []).append(item)


def diff_catalogs(old: pd.DataFrame, new: pd.DataFrame) -> CatalogDiff:
    """Return the difference between two canonical catalogs.

    Raises `InputError` for a repeated `item_id`, and for metadata that is not a JSON object.
    """
    before, after = _items(old, "old"), _items(new, "new")
    kept = [(item, after[item_id]) for item_id, item in before.items() if item_id in after]
    removed = {item_id: item for item_id, item in before.items() if item_id not in after}
    added = {item_id: item for item_id, item in after.items() if item_id not in before}
    renamed = _respelt(kept)
    for reason, gone, come in _paired(removed.values(), added.values()):
        kept.append((gone, come))
        if (gone.name.title, gone.name.year) != (come.name.title, come.name.year):  # otherwise only the id changed
            renamed.append(Renamed(gone.name, come.name, reason))
        del removed[gone.item_id], added[come.item_id]
    new_names = {pair.new.item_id for pair in renamed}
    changed = [change for pair in kept if (change := _change(*pair)) is not None]
    touched = new_names | {change.item.item_id for change in changed}
    for gone, into in _merged(removed.values(), [item for item in after.values() if item.item_id in before]):
        renamed.append(Renamed(gone.name, into.name, "merged"))
        del removed[gone.item_id]
    return CatalogDiff(
        before=len(before),
        after=len(after),
        added=tuple(sorted((item.name for item in added.values()), key=lambda name: name.item_id)),
        removed=tuple(sorted((item.name for item in removed.values()), key=lambda name: name.item_id)),
        renamed=tuple(sorted(renamed, key=lambda pair: (pair.new.item_id, pair.old.item_id))),
        changed=tuple(sorted(changed, key=lambda change: change.item.item_id)),
        unchanged=sum(item.item_id not in touched for _, item in kept),
    )


def _items(frame: pd.DataFrame, version: str) -> dict[str, _Item]:
    """Return the items by id, in the order of the frame."""
    items: dict[str, _Item] = {}
    columns = (frame[name].tolist() for name in ("item_id", "title", "year", "aliases", "metadata"))
    for item_id, title, year, aliases, metadata in zip(*columns, strict=True):
        if item_id in items:
            raise InputError(f"{version} catalog: item_id {item_id!r} occurs twice; remove one of the two rows")
        name = ItemName(item_id, title, None if pd.isna(year) else int(year))
        text = metadata if isinstance(metadata, str) and metadata else "{}"
        items[item_id] = _Item(name, frozenset(aliases if hasattr(aliases, "__iter__") else ()), text)
    return items


def _respelt(kept: Iterable[tuple[_Item, _Item]]) -> list[Renamed]:
    """Return the items with the same id but another title or year."""
    names = [(old.name, new.name) for old, new in kept if old.name != new.name]
    return [Renamed(old, new, "spelling" if old.title != new.title else "year") for old, new in names]


def tolerated_year_gap(year: int | None, other: int | None) -> int | None:
    """Return the difference of two years of one item; None if it is too large for the same item."""
    if year == other:
        return 0
    if year is None or other is None:
        return YEAR_TOLERANCE + 1  # sorts after all known years
    return gap if (gap := abs(year - other)) <= YEAR_TOLERANCE else None


def _paired(removed: Iterable[_Item], added: Iterable[_Item]) -> list[tuple[Reason, _Item, _Item]]:
    """Return pairs of removed and added items that are the same item, each at most once, closest years first."""
    names = _Names(added)
    candidates = []
    for old in removed:
        title = normalise(old.name.title)
        by_alias = [*names.aliases.get(title, ())]
        by_alias += [new for alias in old.aliases for new in names.titles.get(normalise(alias), ())]
        for by, items in ((0, names.titles.get(title, [])), (1, by_alias)):
            for new in items:
                if (gap := tolerated_year_gap(old.name.year, new.name.year)) is not None:
                    # The ids are sorted, so that the pairs do not depend on which version is the old one.
                    ids = sorted((old.item_id, new.item_id))
                    candidates.append(((gap, by, *ids), old, new))
    return [
        ("alias" if by else "year" if gap else "spelling", old, new)
        for (gap, by, *_), old, new in _each_once(candidates)
    ]


def _merged(removed: Iterable[_Item], kept: Iterable[_Item]) -> list[tuple[_Item, _Item]]:
    """Return the removed items that are now an alias of a kept item, each at most once, closest years first."""
    titles = _Names(removed).titles
    candidates = [
        ((gap, old.item_id, new.item_id), old, new)
        for new in kept
        for alias in new.aliases
        for old in titles.get(normalise(alias), ())
        if (gap := tolerated_year_gap(old.name.year, new.name.year)) is not None
    ]
    return [(old, new) for _, old, new in _each_once(candidates)]


def _each_once(candidates: list[tuple[tuple, _Item, _Item]]) -> Iterator[tuple[tuple, _Item, _Item]]:
    """Yield candidates in the order of their keys, without those whose items were already used."""
    old_ids, new_ids = set(), set()
    for key, old, new in sorted(candidates, key=lambda candidate: candidate[0]):
        if old.item_id not in old_ids and new.item_id not in new_ids:
            old_ids.add(old.item_id)
            new_ids.add(new.item_id)
            yield key, old, new


def _change(old: _Item, new: _Item) -> Changed | None:
    """Return the changes of an item's metadata and aliases, or None."""
    fields = {}
    if old.metadata != new.metadata:
        before, after = _metadata(old, "old"), _metadata(new, "new")
        names = sorted(before.keys() | after.keys())
        fields = {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}
    if not fields and old.aliases == new.aliases:
        return None
    return Changed(new.name, fields, tuple(sorted(new.aliases - old.aliases)), tuple(sorted(old.aliases - new.aliases)))


def _metadata(item: _Item, version: str) -> dict[str, str]:
    """Return the metadata fields of an item that are not empty."""
    try:
        fields = json.loads(item.metadata)
        return {name: str(text) for name, text in fields.items() if text}
    except (ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{version} catalog: item {item.item_id!r}: metadata = {cut(plain(item.metadata), 60)!r} is not a "
            "JSON object; write text by field, or {} for an item without metadata"
        ) from None
