"""The wishes of rows, whose conversations a stage asks for again and again: each is read once."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from convrec.data.catalog import Catalog
from convrec.data.wish_reader import wish_reader
from convrec.data.wishes import Wish

# So many conversations are kept at most, and so many bytes for wishes of four a conversation, each a byte an item. A
# conversation's text comes on top, and wishes may be more than four (see `WishReader.read`).
_MOST, _CELLS = 20_000, 2**28


def wishes_of(row: Mapping[str, Any], catalog: Catalog) -> list[Wish]:
    """Return the wishes of a row: its `wishes`, or else those that its conversation tells (see `WishReader.read`)."""
    if "wishes" in row:
        return list(row["wishes"])
    return list(catalog.once(_reader)(tuple((message["role"], message["content"]) for message in row["messages"])))


def _reader(catalog: Catalog) -> Callable[[tuple[tuple[str, str], ...]], list[Wish]]:
    read = wish_reader(catalog).read
    return lru_cache(maxsize=min(_MOST, _CELLS // (4 * len(catalog))))(
        lambda said: read([{"role": role, "content": words} for role, words in said])
    )
