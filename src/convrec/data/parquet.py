"""Reads Parquet files in batches; a file that is not readable is an `InputError` that names it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.project.errors import InputError


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a file; errors of reading it in the block are `InputError`s that name it."""
    try:
        with pq.ParquetFile(path) as file:
            yield file
    # Arrow's own errors, dates outside Python's range, and unknown time zones
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({str(error)[:200]}); write it again") from None


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as plain Python values."""
    with open_parquet(path) as file:
        for batch in file.iter_batches(10_000):
            yield from batch.to_pylist()


def parquet_frame(path: Path, columns: Sequence[str] | None = None, **options: Any) -> Any:
    """Return the columns of a file as pandas has them; `options` are those of Arrow's `to_pandas`."""
    with open_parquet(path) as file:
        table = file.read(columns)
        return table.select(list(columns or table.column_names)).to_pandas(**options)


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)
