"""The difference between two versions of the processed data: catalog and conversations."""

from dataclasses import asdict, dataclass
from typing import Any

from convrec.data.revisions.catalog_diff import CatalogDiff, diff_catalogs
from convrec.data.revisions.conversation_diff import ConversationsDiff, diff_conversations
from convrec.data.revisions.load import load_version
from convrec.project.errors import InputError
from convrec.project.text import cut, plain


@dataclass(frozen=True)
class DataDiff:
    """The difference between two versions, with their requested names.

    A part that only one version has is None, and listed in `not_compared`.
    """

    old: str
    new: str
    catalog: CatalogDiff | None
    conversations: ConversationsDiff | None
    not_compared: list[str]

    @property
    def is_empty(self) -> bool:
        return all(part is None or part.is_empty for part in (self.catalog, self.conversations))

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values in a stable order."""
        return asdict(self)

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
    before, after = load_version(old), load_version(new)
    catalogs = conversations = added = None
    if before.catalog is not None and after.catalog is not None:
        catalogs = diff_catalogs(before.catalog, after.catalog)
        if catalogs.added:
            added = after.catalog[after.catalog["item_id"].isin({item.item_id for item in catalogs.added})]
    if before.splits and after.splits:
        conversations = diff_conversations(before.splits, after.splits, added)
    if catalogs is None and conversations is None:
        held = [f"{v.name} has only {'conversations' if v.splits else 'a catalog'}" for v in (before, after)]
        raise InputError(f"{', '.join(held)}: there is nothing to compare; give two versions of the same kind")
    alone = {
        "catalog": (before.catalog is None) != (after.catalog is None),
        "conversations": bool(before.splits) != bool(after.splits),
    }
    return DataDiff(old, new, catalogs, conversations, [part for part, one in alone.items() if one])
