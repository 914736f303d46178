"""Reads foreign Parquet files in batches and within limits: a few kilobytes can encode millions of rows."""

import faulthandler
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from convrec.project.errors import InputError

# Exceptions of reading Parquet: Arrow's own, dates outside Python's range, and unknown time zones.
UNREADABLE_PARQUET = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError)
MAX_ITEMS = 1_000_000  # rows of a catalog
MAX_ROWS = 10_000_000  # rows of any other file
MAX_VALUES = 100_000_000  # of a column, those in lists counted one by one
MAX_BATCH_BYTES = 2**28  # of the rows that are in memory at once
_BATCH = 10_000  # rows
_VALUE = 16  # bytes that count for a value beside its text


def open_parquet(path: Path, max_rows: int = MAX_ROWS) -> pq.ParquetFile:
    """Return a file whose metadata is within the bounds; its texts come as dictionaries, however long they are.

    Raises `InputError` for one that is not readable, or that says it holds more.
    """
    try:
        with pq.ParquetFile(path) as file:
            schema, metadata = file.schema, file.metadata
        columns = [schema.column(place) for place in range(len(schema))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        most_values = _most_values(metadata)
        names = pq.read_schema(path).names
        if len(set(names)) < len(names):
            raise InputError(f"{path}: a column stands twice (found {', '.join(names)[:300]}); remove one")
        _check(path, "rows", metadata.num_rows, max_rows)
        _check(path, "values in one column", most_values, MAX_VALUES)
        return pq.ParquetFile(path, read_dictionary=texts)
    except UNREADABLE_PARQUET as error:
        raise unreadable(path, error) from None


def _most_values(metadata: pq.FileMetaData) -> int:
    """Return the number of values of the column that has most.

    A child process counts: damaged metadata of a column can abort the process that asks for it (Arrow 25). Raises
    `ValueError` where it did.
    """
    result, writing = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where Arrow writes the reason of an abort
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            columns = range(metadata.num_columns)
            values = [sum(group.column(place).num_values for group in groups) for place in columns]
            os.write(writing, str(max(values, default=0)).encode())
        os.kill(os.getpid(), signal.SIGKILL)  # none of the parent's hooks or handlers may run here
    os.close(writing)
    with os.fdopen(result) as answer:
        found = answer.read()
    os.waitpid(child, 0)
    if not found:
        raise ValueError("the metadata of a column is damaged")
    return int(found)


def unreadable(path: Path, error: Exception, row: int = 0) -> InputError:
    """Return what to tell of a file that is not readable, or not after this row."""
    where = f"after row {row}: " if row else ""
    return InputError(f"{path}: {where}not a readable Parquet file ({str(error)[:200]}); write it again")


def parquet_batches(
    path: Path, columns: Sequence[str] | None = None, max_rows: int = MAX_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, some thousands at a time, their texts as plain columns.

    Raises `InputError` for a file that is not readable or beyond the bounds.
    """
    number = 0
    with open_parquet(path, max_rows) as file:
        plain = pq.read_schema(path).remove_metadata()
        try:
            # By row groups: each has dictionaries of its own, and Arrow makes no batch of texts in lists of two.
            groups = range(file.num_row_groups)
            for batch in (b for g in groups for b in file.iter_batches(_BATCH, row_groups=[g], columns=columns)):
                number += batch.num_rows
                _check(path, "rows", number, max_rows)
                if sum(map(_num_bytes, batch.columns)) > MAX_BATCH_BYTES:
                    raise InputError(
                        f"{path}: more than {MAX_BATCH_BYTES // 2**20} MB in the {batch.num_rows:,} rows up to row "
                        f"{number:,}; write it with shorter texts"
                    )
                with suppress(pa.ArrowNotImplementedError):  # views of texts stay dictionaries
                    batch = batch.cast(pa.schema([plain.field(name) for name in batch.schema.names]))
                yield batch
        except UNREADABLE_PARQUET as error:
            raise unreadable(path, error, number) from None


def parquet_rows(path: Path, max_rows: int = MAX_ROWS) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as plain Python values; raises as `parquet_batches` does."""
    number = 0
    for batch in parquet_batches(path, max_rows=max_rows):
        try:
            rows = batch.to_pylist()
        except UNREADABLE_PARQUET as error:
            raise unreadable(path, error, number) from None
        number += len(rows)
        yield from rows


def parquet_frame(path: Path, columns: Sequence[str] | None = None, max_rows: int = MAX_ROWS, **options: Any) -> Any:
    """Return the columns of a file as pandas has them; `options` are those of Arrow's `to_pandas`; raises likewise."""
    batches = list(parquet_batches(path, columns, max_rows))
    try:
        schema = batches[0].schema if batches else pq.read_schema(path)
        table = pa.Table.from_batches(batches, schema)
        return table.select(list(columns or table.column_names)).to_pandas(**options)
    except UNREADABLE_PARQUET as error:
        raise unreadable(path, error) from None


def parquet_columns(path: Path) -> list[str]:
    """Return the names of a file's columns; raises as `open_parquet` does."""
    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def _check(path: Path, what: str, number: int, most: int) -> None:
    if number > most:
        raise InputError(f"{path}: {number:,} {what}; at most {most:,} are read: write it in parts")


def _num_bytes(array: pa.Array) -> int:
    """Return the size of a column's values, each text counted as often as it stands there."""
    if isinstance(array, pa.DictionaryArray):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return (pc.sum(lengths.take(array.indices)).as_py() or 0) + _VALUE * len(array)
    if pa.types.is_struct(array.type):
        return sum(map(_num_bytes, array.flatten()))
    if pa.types.is_nested(array.type):  # lists, and maps
        return _num_bytes(array.values if pa.types.is_map(array.type) else array.flatten())
    return array.nbytes + _VALUE * len(array)
