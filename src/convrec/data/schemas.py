"""The canonical tables: their types, and how they are written.

docs/data.md describes them.
"""

import tempfile
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.catalog import Catalog
from convrec.data.row_files import GROUP, Row, Rows, write_tables
from convrec.project.errors import InputError

_TITLES = pa.list_(pa.string())
CATALOG_TYPES = pa.schema(
    {"item_id": pa.string(), "title": pa.string(), "year": pa.int64(), "aliases": _TITLES, "metadata": pa.string()}
)
CONVERSATION_TYPES = pa.schema(
    {
        "conversation_id": pa.string(),
        "prompt_id": pa.string(),
        "user_id": pa.string(),
        "date": pa.string(),
        "messages": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "groundtruth": pa.list_(pa.struct({"title": pa.string(), "year": pa.int64()})),
        "seen_titles": _TITLES,
        "disliked_titles": _TITLES,
        "repeatable_titles": _TITLES,
    }
)
# Of rows before they are split: the split that the source gives a row, "" where it gives none.
SOURCE_TYPES = CONVERSATION_TYPES.append(pa.field("split", pa.string()))
# What rows without these columns have there.
OPTIONAL: dict[str, Any] = {"user_id": "", "disliked_titles": [], "repeatable_titles": [], "split": ""}


def conform(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table of `SOURCE_TYPES`; what the cells hold is `rows`' matter.

    Rows without a column of `OPTIONAL` get its default. Raises `InputError` naming a column that is of another type.
    """
    columns = {}
    for column in SOURCE_TYPES:
        name, default = column.name, OPTIONAL.get(column.name)
        try:
            cells = [row[name] if default is None else row.get(name, default) for row in rows]
            if pa.types.is_list(column.type) and any(isinstance(cell, str) for cell in cells):
                raise TypeError("a text is no list")  # Arrow takes its characters
            columns[name] = pa.array(cells, column.type)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
            problem = f"{name}: {str(error)[:300]}"
            raise InputError(f"conversations: not in the canonical form ({problem}); see docs/data.md") from None
    return pa.table(columns, SOURCE_TYPES)


def spooled(rows: Iterable[Row]) -> Rows:
    """Return the rows (see `conform`) as a lazy sequence; a group of them is in memory at a time.

    They are in a file without a name in the current folder, which ends with them.
    """
    left, file = iter(rows), tempfile.TemporaryFile(dir=".")  # noqa: SIM115  (open as long as its rows)
    write_tables(map(conform, iter(lambda: list(islice(left, GROUP)), [])), SOURCE_TYPES, file)
    file.seek(0)
    return Rows(pq.ParquetFile(file))


def write_conversations(rows: Rows, path: Path) -> None:
    """Write one split (see `conform`) as Parquet: the same bytes for the same rows."""
    write_tables(rows.tables(*CONVERSATION_TYPES.names), CONVERSATION_TYPES, path)


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write the catalog's table as Parquet: the same bytes for the same items."""
    table = pa.Table.from_pandas(catalog.to_frame(), schema=CATALOG_TYPES, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), path)  # pandas cannot read back its notes on nested types
