"""The difference between two versions of a catalog: items added, removed, renamed, or with changed metadata."""

from collections import defaultdict
from dataclasses import dataclass

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Item
from convrec.data.titles import normalise
from convrec.project.text import listing


@dataclass(frozen=True)
class CatalogDiff:
    """The difference between two catalogs; lists have one text for each item, sorted by id, by the new one if of two.

    Every item is in one category, except that a renamed item can also be changed. `renamed` are items with another
    title or year that count as one item: the title of one is, in any spelling, a title or an alias of the other, and
    the years are close, or one is unknown. `merged` are such items of the old version that became one with another.
    """

    before: int
    after: int
    unchanged: int
    added: list[str]
    removed: list[str]
    renamed: list[str]
    merged: list[str]
    changed: list[str]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.renamed or self.merged or self.changed)

    def to_text(self, limit: int = 20) -> str:
        """Return a summary line, then up to `limit` items of each category."""
        if self.is_empty:
            return f"Catalog: {self.after:,} items, no change"
        names = ("added", "removed", "renamed", "merged", "changed")
        numbers = ", ".join(f"{len(getattr(self, name)):,} {name}" for name in names)
        lines = [f"Catalog: {self.before:,} -> {self.after:,} items: {numbers}, {self.unchanged:,} unchanged"]
        for name in names:
            lines += listing(name, getattr(self, name), limit)
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
    merged = _same(list(removed.values()), in_both)
    for gone, _ in merged:
        del removed[gone.id]
    kept.sort(key=lambda pair: pair[1].id)
    merged.sort(key=lambda pair: pair[1].id)
    renamed = [f"{one} -> {other}" for one, other in kept if str(one) != str(other)]
    changes = {other: parts for one, other in kept if (parts := _changes(one, other))}
    touched = {other for one, other in kept if str(one) != str(other) or other in changes}
    return CatalogDiff(
        before=len(before),
        after=len(after),
        unchanged=len(kept) - len(touched),
        added=[str(added[item_id]) for item_id in sorted(added)],
        removed=[str(removed[item_id]) for item_id in sorted(removed)],
        renamed=renamed,
        merged=[f"{one} -> {other}" for one, other in merged],
        changed=[f"{item}: {'; '.join(parts)}" for item, parts in changes.items()],
    )


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


def _changes(old: Item, new: Item) -> list[str]:
    """Return what changed of an item's metadata and aliases: `field "old" -> "new"`, `alias "text" added`."""
    parts = []
    for name in sorted(old.metadata.keys() | new.metadata.keys()):
        one, other = (f'"{text}"' if (text := item.metadata.get(name)) else "none" for item in (old, new))
        if one != other:
            parts.append(f"{name} {one} -> {other}")
    parts += [f'alias "{alias}" added' for alias in sorted({*new.aliases} - {*old.aliases})]
    return parts + [f'alias "{alias}" removed' for alias in sorted({*old.aliases} - {*new.aliases})]
