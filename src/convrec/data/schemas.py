"""The canonical tables: their types, the rules of a row, and how they are written.

docs/data.md describes them.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.catalog import Catalog
from convrec.data.conversations import ROLES
from convrec.data.titles import YEARS
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
_DAY = r"^(?:\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))?$"
_FIELD = pl.element().struct.field


def _every(name: str, is_good: pl.Expr) -> pl.Expr:
    """Return whether every element of a list is good; null is not."""
    return pl.col(name).list.eval(is_good.fill_null(False)).list.all()


_RULES = {  # what holds in every row
    "conversation_id and prompt_id are not empty": (pl.col("conversation_id") != "") & (pl.col("prompt_id") != ""),
    "user_id is not null": pl.col("user_id").is_not_null(),
    "date is YYYY-MM-DD or empty": pl.col("date").str.contains(_DAY),
    "messages have known roles and words": _every(
        "messages", _FIELD("role").is_in(ROLES) & (_FIELD("content").str.strip_chars() != "")
    ),
    "one of the messages is the user's": pl.col("messages").list.eval(_FIELD("role") == "user").list.any(),
    "groundtruth has an item": pl.col("groundtruth").list.len() > 0,
    "every item of groundtruth has a title, and a year in range or none": _every(
        "groundtruth",
        (_FIELD("title").str.strip_chars() != "")
        & (_FIELD("year").is_between(YEARS[0], YEARS[-1]) | _FIELD("year").is_null()),
    ),
    **{
        f"none of {name} is null": _every(name, pl.element().is_not_null())
        for name in ("seen_titles", "disliked_titles", "repeatable_titles")
    },
    "every one of disliked_titles is among seen_titles": (
        pl.col("disliked_titles").list.set_difference("seen_titles").list.len() == 0
    ),
}


def conform(rows: pd.DataFrame) -> pd.DataFrame:
    """Return conversation rows with the canonical columns and Arrow's types, validated.

    Rows without a column of `OPTIONAL` get its default.
    Raises `InputError` naming the column and what does not hold there.
    """
    columns = []
    rows = rows.assign(**{name: [value] * len(rows) for name, value in OPTIONAL.items() if name not in rows})
    for field in CONVERSATION_TYPES:
        try:
            part = pa.Table.from_pandas(rows[[field.name]], schema=pa.schema([field]), preserve_index=False)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"conversations: column {field.name!r} is not in the canonical form ({str(error)[:200]}); "
                "see docs/data.md"
            ) from None
        columns.append(part.column(0))
    table = pa.table(columns, schema=CONVERSATION_TYPES)
    checks = [rule.fill_null(False).all().alias(what) for what, rule in _RULES.items()]
    for what, holds in pl.DataFrame(pl.from_arrow(table)).select(checks).row(0, named=True).items():
        if not holds:
            raise InputError(f"conversations: not so in every row: {what}; see docs/data.md")
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def write_conversations(rows: pd.DataFrame, path: Path) -> None:
    """Write one split (see `conform`) as Parquet: the same bytes for the same rows."""
    _write(rows, CONVERSATION_TYPES, path)


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Write the catalog's table as Parquet: the same bytes for the same items."""
    _write(catalog.to_frame(), CATALOG_TYPES, path)


def _write(frame: pd.DataFrame, schema: pa.Schema, path: Path) -> None:
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), path)  # pandas cannot read back its notes on nested types
