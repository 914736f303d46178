"""The difference between two versions of a catalog: items added, removed, renamed, or with changed metadata."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Item
from convrec.data.titles import line, normalise
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
    - `merged`: as one of these, with an item of both versions, so two items of the old version became one.
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


def diff_catalogs(old: Catalog, new: Catalog) -> CatalogDiff:
    """Return the difference between two catalogs."""
    before, after = ({item.id: item for item in catalog.items} for catalog in (old, new))
    kept = [(before[item_id], after[item_id]) for item_id in before if item_id in after]
    removed = {item_id: item for item_id, item in before.items() if item_id not in after}
    added = {item_id: item for item_id, item in after.items() if item_id not in before}
    in_both = [item for _, item in kept]
    for gone, come in _same(list(removed.values()), list(added.values())):
        kept.append((gone, come))
        del removed[gone.id], added[come.id]
    renamed = [Renamed(_name(a), _name(b), _reason(a, b)) for a, b in kept if (a.title, a.year) != (b.title, b.year)]
    changed = [change for pair in kept if (change := _change(*pair)) is not None]
    touched = {pair.new.item_id for pair in renamed} | {change.item.item_id for change in changed}
    for gone, into in _same(list(removed.values()), in_both):
        renamed.append(Renamed(_name(gone), _name(into), "merged"))
        del removed[gone.id]
    return CatalogDiff(
        before=len(before),
        after=len(after),
        unchanged=sum(item.id not in touched for _, item in kept),
        added=[_name(added[item_id]) for item_id in sorted(added)],
        removed=[_name(removed[item_id]) for item_id in sorted(removed)],
        renamed=sorted(renamed, key=lambda pair: (pair.new.item_id, pair.old.item_id)),
        changed=sorted(changed, key=lambda change: change.item.item_id),
    )


def _name(item: Item) -> ItemName:
    return ItemName(item.id, item.title, item.year)


def _reason(old: Item, new: Item) -> Reason:
    if normalise(old.title) != normalise(new.title) and old.id != new.id:
        return "alias"
    return "year" if old.year != new.year else "spelling"


def _same(old: list[Item], new: list[Item]) -> list[tuple[Item, Item]]:
    """Return the pairs that are the same item: each item once, closest years first, own titles before aliases.

    The title of one is a title of the other, and the years are close, or one is unknown.
    """
    by_title = defaultdict(list)
    for item in new:
        for title in _titles(item):
            by_title[title].append(item)
    candidates = []
    for item in old:
        for title in _titles(item):
            for other in by_title.get(title, ()):
                own = {normalise(item.title), normalise(other.title)}
                unknown = (item.year is None) != (other.year is None)  # sorts after all known years
                gap = YEAR_TOLERANCE + 1 if unknown else abs((item.year or 0) - (other.year or 0))
                if title in own and (unknown or gap <= YEAR_TOLERANCE):
                    candidates.append(((gap, len(own), item.id, other.id), item, other))
    used_old, used_new, pairs = set(), set(), []
    for _, item, other in sorted(candidates, key=lambda candidate: candidate[0]):
        if item.id not in used_old and other.id not in used_new:
            used_old.add(item.id)
            used_new.add(other.id)
            pairs.append((item, other))
    return pairs


def _titles(item: Item) -> set[str]:
    return {normalise(title) for title in (item.title, *item.aliases)}


def _change(old: Item, new: Item) -> Changed | None:
    """Return the changes of an item's metadata and aliases, or None."""
    fields: dict[str, dict[str, str | None]] = {
        name: {"old": old.metadata.get(name) or None, "new": new.metadata.get(name) or None}
        for name in sorted(old.metadata.keys() | new.metadata.keys())
        if (old.metadata.get(name) or None) != (new.metadata.get(name) or None)
    }
    added, removed = sorted({*new.aliases} - {*old.aliases}), sorted({*old.aliases} - {*new.aliases})
    if not (fields or added or removed):
        return None
    return Changed(_name(new), fields, {"added": added, "removed": removed})
