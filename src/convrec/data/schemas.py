"""The canonical tables: their types, their checks, and how they are written.

docs/data.md describes them.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pandera.polars as pandera
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.catalog import Catalog
from convrec.data.rows import ROLES
from convrec.data.titles import YEARS
from convrec.project.errors import InputError

_ITEM = pa.struct([("title", pa.string()), ("year", pa.int64())])
_MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])
CATALOG_TYPES = pa.schema(
    [
        ("item_id", pa.string()),
        ("title", pa.string()),
        ("year", pa.int64()),
        ("aliases", pa.list_(pa.string())),
        ("metadata", pa.string()),
    ]
)
CONVERSATION_TYPES = pa.schema(
    [
        ("conversation_id", pa.string()),
        ("prompt_id", pa.string()),
        ("user_id", pa.string()),
        ("date", pa.string()),
        ("messages", pa.list_(_MESSAGE)),
        ("groundtruth", pa.list_(_ITEM)),
        ("seen_titles", pa.list_(pa.string())),
        ("disliked_titles", pa.list_(pa.string())),
        ("repeatable_titles", pa.list_(pa.string())),
    ]
)
# What rows without these columns have there.
OPTIONAL: dict[str, Any] = {"user_id": "", "disliked_titles": [], "repeatable_titles": []}
_DAY = r"^(?:\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01]))?$"
_EACH = pl.element().struct.field
_YEAR_OR_NONE = pandera.Check.in_range(YEARS[0], YEARS[-1])


def _every(name: str, is_good: pl.Expr) -> pandera.Check:
    """Return a check that holds where every element of a list does; the expression speaks of one element."""

    def check(data: pandera.PolarsData) -> pl.LazyFrame:
        # null is not good: a comparison with it is null, which `all` would pass over
        return data.lazyframe.select(pl.col(data.key).list.eval(is_good.fill_null(False)).list.all())

    return pandera.Check(check, name=name)


CATALOG = pandera.DataFrameSchema(
    {
        "item_id": pandera.Column(pl.String, pandera.Check.str_length(min_value=1), unique=True),
        "title": pandera.Column(pl.String, pandera.Check.str_matches(r"^\S.*$")),
        "year": pandera.Column(pl.Int64, _YEAR_OR_NONE, nullable=True),
        "aliases": pandera.Column(pl.List(pl.String), _every("every alias is there", pl.element().is_not_null())),
        "metadata": pandera.Column(pl.String, pandera.Check.str_startswith("{")),
    },
    strict=True,
    ordered=True,
)
CONVERSATIONS = pandera.DataFrameSchema(
    {
        "conversation_id": pandera.Column(pl.String, pandera.Check.str_length(min_value=1)),
        "prompt_id": pandera.Column(pl.String, pandera.Check.str_length(min_value=1)),
        "user_id": pandera.Column(pl.String),
        "date": pandera.Column(pl.String, pandera.Check.str_matches(_DAY)),
        "messages": pandera.Column(
            pl.List(pl.Struct({"role": pl.String, "content": pl.String})),
            [
                _every("every role is known", _EACH("role").is_in(ROLES)),
                _every("every message has words", _EACH("content").str.strip_chars() != ""),
                pandera.Check(
                    lambda data: data.lazyframe.select(pl.col(data.key).list.eval(_EACH("role") == "user").list.any()),
                    name="a message is the user's",
                ),
            ],
        ),
        "groundtruth": pandera.Column(
            pl.List(pl.Struct({"title": pl.String, "year": pl.Int64})),
            [
                pandera.Check(
                    lambda data: data.lazyframe.select(pl.col(data.key).list.len() > 0), name="there is ground truth"
                ),
                _every("every item has a title", _EACH("title").str.strip_chars() != ""),
                _every(
                    "every year is in range", _EACH("year").is_between(YEARS[0], YEARS[-1]) | _EACH("year").is_null()
                ),
            ],
        ),
        "seen_titles": pandera.Column(pl.List(pl.String), _every("every title is there", pl.element().is_not_null())),
        "disliked_titles": pandera.Column(
            pl.List(pl.String), _every("every title is there", pl.element().is_not_null())
        ),
        "repeatable_titles": pandera.Column(
            pl.List(pl.String), _every("every title is there", pl.element().is_not_null())
        ),
    },
    pandera.Check(
        lambda data: data.lazyframe.select(
            pl.col("disliked_titles").list.set_difference("seen_titles").list.len() == 0
        ),
        name="every one of disliked_titles is among seen_titles",
    ),
    strict=True,
    ordered=True,
)


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
    validate(table, CONVERSATIONS, "conversations")
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def validate(table: pa.Table, schema: pandera.DataFrameSchema, name: str) -> None:
    """Raise `InputError` naming the first column of the table, and what does not hold there."""
    try:
        schema.validate(pl.DataFrame(pl.from_arrow(table)))
    except (pandera.errors.SchemaError, pandera.errors.SchemaErrors) as error:
        raise InputError(f"{name}: {str(error).splitlines()[0][:300]}; see docs/data.md") from None


def write_conversations(rows: pd.DataFrame, path: Path) -> None:
    """Write one split (see `conform`) as Parquet: the same bytes for the same rows."""
    table = pa.Table.from_pandas(rows, schema=CONVERSATION_TYPES, preserve_index=False)
    pq.write_table(table.replace_schema_metadata(None), path)  # pandas cannot read back its notes on nested types


def write_catalog(catalog: Catalog, path: Path) -> None:
    """Validate the catalog's table and write it as Parquet."""
    table = pa.Table.from_pandas(catalog.to_frame(), schema=CATALOG_TYPES, preserve_index=False)
    validate(table, CATALOG, "catalog")
    pq.write_table(table.replace_schema_metadata(None), path)
