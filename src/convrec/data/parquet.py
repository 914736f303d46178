"""Reads Parquet files in batches; a file that is not readable is an `InputError` that names it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.data.csv_files import require_distinct
from convrec.data.titles import AS_TEXT, EXACT, ITEM_IDS
from convrec.project.errors import InputError
from convrec.project.paths import regular

_IDS = {*ITEM_IDS, "user_id", "conversation_id", "prompt_id"}
# From here on, one float stands for several integers.
_EXACT = {pa.float16(): 2**11, pa.float32(): 2**24, pa.float64(): EXACT}


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file; errors of reading it in the block are `InputError`s that name it, as are two columns of one name."""
    try:
        with pq.ParquetFile(regular(path)) as file:
            require_distinct(path, file.schema_arrow.names)
            yield file
    # Arrow's own errors, dates outside Python's range, and unknown time zones
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({str(error)[:200]}); write it again") from None


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as plain Python values. Raises `InputError` for ids that their floats do not tell apart.

    Ids are the columns of `_IDS`, and the fields of these names in columns of structures and lists.
    """
    with open_parquet(path) as file:
        for batch in file.iter_batches(10_000):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _require_exact_ids(path, name, column)
            yield from batch.to_pylist()


def _require_exact_ids(path: Path, name: str, column: pa.Array) -> None:
    if pa.types.is_struct(column.type):
        for field, own in zip(column.type, column.flatten(), strict=True):
            _require_exact_ids(path, f"{name}.{field.name}", own)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        _require_exact_ids(path, name, column.flatten())
    elif column.type in _EXACT and name.rpartition(".")[2] in _IDS:
        largest = pc.max(pc.abs(column.cast(pa.float64()))).as_py()
        if largest and largest >= _EXACT[column.type]:
            raise inexact_id(path, name, column.type, largest)


def inexact_id(path: Path, name: str, kind: object, value: float) -> InputError:
    """Return the error for a column of ids whose type, one of floats, has this value for several integers."""
    return InputError(
        f"{path}: column {name!r} of type {kind} holds the id {value:.0f}, which stands for several integers; {AS_TEXT}"
    )


def parquet_frame(path: Path, columns: Sequence[str] | None = None, **options: Any) -> Any:
    """Return the columns of a file as pandas has them; `options` are those of Arrow's `to_pandas`."""
    with open_parquet(path) as file:
        table = file.read(columns)
        return table.select(list(columns or table.column_names)).to_pandas(**options)


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)
