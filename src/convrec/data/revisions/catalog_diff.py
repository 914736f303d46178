"""The difference between two versions of a catalog: items added, removed, renamed, or with changed metadata."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pandas as pd

from convrec.data.catalog import YEAR_TOLERANCE
from convrec.data.titles import line, normalise
from convrec.project.errors import InputError
from convrec.project.text import cut, listing, plain

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


@dataclass(frozen=True)
class Changed:
    """Changed metadata of an item: `old` and `new` text by field, None if missing; aliases `added` and `removed`."""

    item: ItemName
    fields: dict[str, dict[str, str | None]]
    aliases: dict[str, list[str]]

    def __str__(self) -> str:
        parts = []
        for name, texts in self.fields.items():
            old, new = ("none" if text is None else f'"{cut(plain(text), _VALUE_WIDTH)}"' for text in texts.values())
            parts.append(f"{name} {old} -> {new}")
        parts += [f'alias "{alias}" {change}' for change, aliases in self.aliases.items() for alias in aliases]
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
    unchanged: int
    added: list[ItemName]
    removed: list[ItemName]
    renamed: list[Renamed]
    changed: list[Changed]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.renamed or self.changed)

    def to_text(self, limit: int = 20) -> str:
        """Return a summary line, then up to `limit` items of each category."""
        if self.is_empty:
            return f"Catalog: {self.after:,} items, no change"
        fields = Counter(name for item in self.changed for name in item.fields)
        fields["aliases"] += sum(any(item.aliases.values()) for item in self.changed)
        counts = ", ".join(f"{plain(name)} {number:,}" for name, number in fields.most_common() if number)
        parts: dict[str, Sequence[object]]
        parts = {"added": self.added, "removed": self.removed, "renamed": self.renamed, "changed": self.changed}
        numbers = ", ".join(f"{len(items):,} {name}" for name, items in parts.items())
        lines = [f"Catalog: {self.before:,} -> {self.after:,} items: {numbers}, {self.unchanged:,} unchanged"]
        for name, items in parts.items():
            lines += listing(f"changed ({counts})" if name == "changed" else name, [str(item) for item in items], limit)
        return "\n".join(lines)


class _Item(NamedTuple):
    name: ItemName
    aliases: frozenset[str]
    metadata: str  # a JSON object, parsed only if the two texts differ


def diff_catalogs(old: pd.DataFrame, new: pd.DataFrame) -> CatalogDiff:
    """Return the difference between two canonical catalogs.

    Raises `InputError` for a repeated `item_id`, and for metadata that is not a JSON object.
    """
    before, after = _items(old, "old"), _items(new, "new")
    kept = [(before[item_id], after[item_id]) for item_id in before if item_id in after]
    removed = {item_id: item for item_id, item in before.items() if item_id not in after}
    added = {item_id: item for item_id, item in after.items() if item_id not in before}
    renamed = [
        Renamed(a.name, b.name, "spelling" if a.name.title != b.name.title else "year")
        for a, b in kept
        if a.name != b.name
    ]
    by_alias = [*_sharing(_titles, removed, _aliases, added), *_sharing(_aliases, removed, _titles, added)]
    for gap, is_alias, gone, come in _closest(_sharing(_titles, removed, _titles, added), by_alias):
        kept.append((gone, come))
        if (gone.name.title, gone.name.year) != (come.name.title, come.name.year):  # otherwise only the id changed
            renamed.append(Renamed(gone.name, come.name, "alias" if is_alias else "year" if gap else "spelling"))
        del removed[gone.name.item_id], added[come.name.item_id]
    changed = [change for pair in kept if (change := _change(*pair)) is not None]
    touched = {pair.new.item_id for pair in renamed} | {change.item.item_id for change in changed}
    in_both = {item_id: item for item_id, item in after.items() if item_id in before}
    for _, _, gone, into in _closest([], _sharing(_titles, removed, _aliases, in_both)):
        renamed.append(Renamed(gone.name, into.name, "merged"))
        del removed[gone.name.item_id]
    return CatalogDiff(
        before=len(before),
        after=len(after),
        unchanged=sum(item.name.item_id not in touched for _, item in kept),
        added=[added[item_id].name for item_id in sorted(added)],
        removed=[removed[item_id].name for item_id in sorted(removed)],
        renamed=sorted(renamed, key=lambda pair: (pair.new.item_id, pair.old.item_id)),
        changed=sorted(changed, key=lambda change: change.item.item_id),
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


def tolerated_year_gap(year: int | None, other: int | None) -> int | None:
    """Return the difference of two years of one item; None if it is too large for the same item."""
    if year == other:
        return 0
    if year is None or other is None:
        return YEAR_TOLERANCE + 1  # sorts after all known years
    return gap if (gap := abs(year - other)) <= YEAR_TOLERANCE else None


def _titles(item: _Item) -> set[str]:
    return {normalise(item.name.title)}


def _aliases(item: _Item) -> set[str]:
    return {normalise(alias) for alias in item.aliases}


_Names = Callable[[_Item], set[str]]
_Pair = tuple[_Item, _Item]


def _sharing(old_names: _Names, old: dict[str, _Item], new_names: _Names, new: dict[str, _Item]) -> list[_Pair]:
    """Return the pairs of an old and a new item that have a name in common."""
    by_name = defaultdict(list)
    for item in new.values():
        for name in new_names(item):
            by_name[name].append(item)
    return [(item, other) for item in old.values() for name in old_names(item) for other in by_name.get(name, ())]


def _closest(by_title: Iterable[_Pair], by_alias: Iterable[_Pair]) -> list[tuple[int, bool, _Item, _Item]]:
    """Return the pairs that are the same item, with the gap of their years: each item once, closest years first."""
    candidates = []
    for is_alias, pairs in ((False, by_title), (True, by_alias)):
        for old, new in pairs:
            if (gap := tolerated_year_gap(old.name.year, new.name.year)) is not None:
                # The ids are sorted, so that the pairs do not depend on which version is the old one.
                ids = sorted((old.name.item_id, new.name.item_id))
                candidates.append(((gap, is_alias, ids), old, new))
    used_old, used_new, closest = set(), set(), []
    for (gap, is_alias, _), old, new in sorted(candidates, key=lambda candidate: candidate[0]):
        if old.name.item_id not in used_old and new.name.item_id not in used_new:
            used_old.add(old.name.item_id)
            used_new.add(new.name.item_id)
            closest.append((gap, is_alias, old, new))
    return closest


def _change(old: _Item, new: _Item) -> Changed | None:
    """Return the changes of an item's metadata and aliases, or None."""
    fields: dict[str, dict[str, str | None]] = {}
    if old.metadata != new.metadata:
        before, after = _metadata(old, "old"), _metadata(new, "new")
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                fields[name] = {"old": before.get(name), "new": after.get(name)}
    if not fields and old.aliases == new.aliases:
        return None
    added, removed = sorted(new.aliases - old.aliases), sorted(old.aliases - new.aliases)
    return Changed(new.name, fields, {"added": added, "removed": removed})


def _metadata(item: _Item, version: str) -> dict[str, str]:
    """Return the metadata fields of an item that are not empty."""
    try:
        fields = json.loads(item.metadata)
        return {name: str(text) for name, text in fields.items() if text}
    except (ValueError, AttributeError, RecursionError):
        raise InputError(
            f"{version} catalog: item {item.name.item_id!r}: metadata = {cut(plain(item.metadata), 60)!r} is not a "
            "JSON object; write text by field, or {} for an item without metadata"
        ) from None
