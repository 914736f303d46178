"""Rows of Parquet files as lazy sequences: some groups of rows of a file are in memory at a time, never all."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
GROUP = 5_000  # rows of a group that is written: so many are decoded to look up one
_BATCH = 1_000  # rows that are Python values at a time
_DECODED = 8  # groups that are kept for the next look-ups


class Rows(Sequence[Row]):
    """Rows of Parquet files, as plain Python values.

    `rows[3]` is a row, and `rows["date"]` a column, as pandas has it. Slices, and arrays of places or of booleans, give
    views. `+` joins the rows of two.
    """

    def __init__(self, *files: pq.ParquetFile):
        groups = [(file, number) for file in files for number in range(file.num_row_groups)]
        self._files = files
        self._starts = np.cumsum([0, *(file.metadata.row_group(number).num_rows for file, number in groups)])
        self._places = np.arange(self._starts[-1], dtype=np.int32)

        @lru_cache(_DECODED)
        def read(number: int, names: tuple[str, ...] | None) -> pa.Table:
            file, own = groups[number]
            return file.read_row_group(own, names)

        self._read = read

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            kind = self._files[0].schema_arrow.field(key).type
            parts = [table[key].combine_chunks() for table in self.tables(key)]
            return pd.Series(pa.chunked_array(parts, kind), dtype=pd.ArrowDtype(kind))
        if isinstance(key, (int, np.integer)):
            return next(iter(self[[key]]))
        view = copy.copy(self)
        view._places = self._places[key.to_numpy(bool) if isinstance(key, pd.Series) else key]
        return view

    def __iter__(self) -> Iterator[Row]:
        for table in self.tables():
            for batch in table.to_batches(_BATCH):
                yield from batch.to_pylist()

    def __add__(self, other: "Rows") -> "Rows":
        both = Rows(*self._files, *other._files)
        both._places = np.append(self._places, other._places + np.int32(self._starts[-1]))
        return both

    def values(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row in these columns."""
        for table in self.tables(*names):
            for batch in table.to_batches(_BATCH):
                yield from zip(*(cells.to_pylist() for cells in batch.columns), strict=True)

    def tables(self, *names: str) -> Iterator[pa.Table]:
        """Yield the rows, or these columns of them, in order, in tables of at most a group each."""
        groups = np.searchsorted(self._starts, self._places, side="right") - 1
        ends = [*(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        for start, end in zip([0, *ends], ends, strict=False):
            if start < end:
                table = self._read(groups[start], names or None)
                places = self._places[start:end] - self._starts[groups[start]]
                is_whole = len(places) == len(table) and (np.diff(places) == 1).all()
                table = table if is_whole else table.take(places)
                yield table.select(names) if names else table


def first_of_each(column: Any) -> np.ndarray:
    """Return the place at which each value of a column is first, ascending."""
    return np.unique(pd.factorize(column)[0], return_index=True)[1]


def column_of(rows: Sequence[Row], name: str) -> pd.Series:
    """Return what rows have in a column, "" where they lack it."""
    return rows[name] if isinstance(rows, Rows) else pd.Series([row.get(name) or "" for row in rows], dtype="str")


def chosen_rows(rows: Sequence[Row], places: np.ndarray) -> Sequence[Row]:
    """Return the rows at these places, or for which an array of booleans is true; a view where the rows are lazy."""
    if isinstance(rows, Rows):
        return rows[places]
    return [rows[place] for place in np.arange(len(rows))[places]]


def joined(first: Sequence[Row], second: Sequence[Row]) -> Sequence[Row]:
    """Return the rows of both, in order; a view where both are lazy."""
    return first + second if isinstance(first, Rows) and isinstance(second, Rows) else [*first, *second]


def write_tables(tables: Iterable[pa.Table], schema: pa.Schema, file: Path | IO[bytes]) -> None:
    """Write tables as Parquet, in groups of `GROUP` rows: the same bytes for the same rows."""
    with pq.ParquetWriter(file, schema) as writer:
        rest = schema.empty_table()
        for table in tables:
            rest = pa.concat_tables([rest, table.select(schema.names)])
            while len(rest) >= GROUP:
                writer.write_table(rest.slice(0, GROUP).combine_chunks())
                rest = rest.slice(GROUP)
        if len(rest):
            writer.write_table(rest.combine_chunks())
