"""The difference between two versions of the processed data: catalog and conversations."""

from dataclasses import dataclass
from typing import Any

from convrec.errors import InputError
from convrec.text import cut, plain
from convrec.versions.catalog_diff import CatalogDiff, diff_catalogs
from convrec.versions.conversation_diff import ConversationsDiff, diff_conversations
from convrec.versions.load import Version, load_version


@dataclass(frozen=True)
class DataDiff:
    """The difference between two versions, with their requested names.

    A part that only one version has is None, and listed in `not_compared`.
    """

    old: str
    new: str
    catalog: CatalogDiff | None
    conversations: ConversationsDiff | None
    not_compared: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return all(part is None or part.is_empty for part in (self.catalog, self.conversations))

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values in a stable order."""
        return {
            "old": self.old,
            "new": self.new,
            "catalog": self.catalog and self.catalog.to_json(),
            "conversations": self.conversations and self.conversations.to_json(),
            "not_compared": list(self.not_compared),
        }

    def to_text(self, limit: int = 20) -> str:
        """Return both parts as text for a terminal of 100 columns, with up to `limit` names of each category."""
        left = [f"Not compared, because only one version has it: {part}" for part in self.not_compared]
        names = cut(plain(f"{self.old} -> {self.new}"))
        if self.is_empty:
            return "\n".join([f"{names}: no change", *left])
        parts = [part.to_text(limit) for part in (self.catalog, self.conversations) if part is not None]
        return "\n".join([names, *parts, *left])


def diff(old: str, new: str) -> DataDiff:
    """Return the difference between two versions (see `load_version` for their names).

    Raises `InputError` if a version cannot be loaded, or if the two have neither catalogs nor conversations in common.
    """
    return diff_versions(load_version(old), load_version(new))


def diff_versions(old: Version, new: Version) -> DataDiff:
    """Return the difference between two loaded versions. Raises `InputError` as `diff` does."""
    catalogs = conversations = None
    if old.catalog is not None and new.catalog is not None:
        catalogs = diff_catalogs(old.catalog, new.catalog)
    if old.splits and new.splits:
        added = None
        if catalogs is not None and new.catalog is not None and catalogs.added:
            ids = {item.item_id for item in catalogs.added}
            added = new.catalog[new.catalog["item_id"].isin(ids)]
        conversations = diff_conversations(old.splits, new.splits, added)
    if catalogs is None and conversations is None:
        held = [f"{v.name} has only {'conversations' if v.splits else 'a catalog'}" for v in (old, new)]
        raise InputError(f"{', '.join(held)}: there is nothing to compare; give two versions of the same kind")
    alone = {
        "catalog": (old.catalog is None) != (new.catalog is None),
        "conversations": bool(old.splits) != bool(new.splits),
    }
    return DataDiff(old.name, new.name, catalogs, conversations, tuple(part for part, one in alone.items() if one))
