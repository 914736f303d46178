"""The canonical tables: their types, and how they are written.

docs/data.md describes them.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.catalog import Catalog
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
# What rows without these columns have there.
OPTIONAL: dict[str, Any] = {"user_id": "", "disliked_titles": [], "repeatable_titles": []}


def conform(rows: pd.DataFrame) -> pd.DataFrame:
    """Return conversation rows with the canonical columns and Arrow's types; what the cells hold is `rows`' matter.

    Rows without a column of `OPTIONAL` get its default. Raises `InputError` naming a column that is of another type.
    """
    rows = rows.assign(**{name: [value] * len(rows) for name, value in OPTIONAL.items() if name not in rows})
    try:
        table = pa.Table.from_pandas(rows, schema=CONVERSATION_TYPES, preserve_index=False)
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:  # Arrow names the column
        raise InputError(f"conversations: not in the canonical form ({str(error)[:300]}); see docs/data.md") from None
    return table.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)


def write_conversations(rows: pd.DataFrame, path: Path) -> None:
    """Write one split (see `conform`) as Parquet: the same bytes for the same rows."""
    _write(rows, CONVERSATION_TYPES, path)


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write the catalog's table as Parquet: the same bytes for the same items."""
    _write(catalog.to_frame(), CATALOG_TYPES, path)


def _write(frame: pd.DataFrame, schema: pa.Schema, path: Path) -> None:
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), path)  # pandas cannot read back its notes on nested types
