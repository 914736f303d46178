"""Rows of Parquet files as lazy sequences: one group of rows of a file is in memory at a time, never all."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, overload

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]
GROUP = 5_000  # rows of a group that is written: so many are decoded to look up one
_BATCH = 1_000  # rows that are Python values at a time
_DECODED = 8  # groups that are kept for the next look-ups


class _Groups:
    """The groups of rows of some files. `starts` are the places of their first rows, and the end."""

    def __init__(self, files: Sequence[pq.ParquetFile]):
        self.files = files
        groups = [(file, number) for file in files for number in range(file.num_row_groups)]
        sizes = (file.metadata.row_group(number).num_rows for file, number in groups)
        self.starts = np.cumsum([0, *sizes])
        self._groups = groups
        self.decoded = lru_cache(_DECODED)(self.read)

    def read(self, number: int, columns: tuple[str, ...] | None = None) -> pa.Table:
        file, own = self._groups[number]
        table = file.read_row_group(own, columns)
        return table if columns is None else table.select(columns)


class Rows(Sequence[Row]):
    """Rows of Parquet files, in any order, as plain Python values.

    `rows[3]` is a row, and `rows["date"]` a column, as pandas has it. Slices, and arrays of places or of booleans, give
    views. `+` joins the rows of two.
    """

    def __init__(self, groups: _Groups, places: np.ndarray | None = None):
        self._groups = groups
        self._places = np.arange(groups.starts[-1], dtype=np.int32) if places is None else places

    @classmethod
    def of(cls, file: Path | IO[bytes]) -> "Rows":
        """Return the rows of a file."""
        return cls(_Groups([pq.ParquetFile(file)]))

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self._groups.files[0].schema_arrow.names

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: str) -> pd.Series: ...
    @overload
    def __getitem__(self, key: "slice | np.ndarray | pd.Series | list[int]") -> "Rows": ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            parts = [table[key].combine_chunks() for table in self.tables([key])]
            kind = self._groups.files[0].schema_arrow.field(key).type
            return pd.Series(pa.chunked_array(parts, kind), dtype=pd.ArrowDtype(kind))
        if isinstance(key, (int, np.integer)):
            place = self._places[key]
            group = int(np.searchsorted(self._groups.starts, place, side="right")) - 1
            return self._groups.decoded(group).slice(place - self._groups.starts[group], 1).to_pylist()[0]
        chosen = key.to_numpy(bool) if isinstance(key, pd.Series) else key
        return Rows(self._groups, self._places[chosen if isinstance(chosen, slice) else np.asarray(chosen)])

    def __iter__(self) -> Iterator[Row]:
        for table in self.tables():
            for batch in table.to_batches(_BATCH):
                yield from batch.to_pylist()

    def values(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Yield the cells of each row in these columns."""
        for table in self.tables(names):
            for batch in table.to_batches(_BATCH):
                yield from zip(*(cells.to_pylist() for cells in batch.columns), strict=True)

    def __add__(self, other: "Rows") -> "Rows":
        places = np.append(self._places, other._places + np.int32(self._groups.starts[-1]))
        return Rows(_Groups([*self._groups.files, *other._groups.files]), places)

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows in tables of at most a group each, in order."""
        starts, names = self._groups.starts, None if columns is None else tuple(columns)
        groups = (np.searchsorted(starts, self._places, side="right") - 1).astype(np.int32)
        ends = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups))
        for start, end in zip(np.append(0, ends[:-1]), ends if len(groups) else (), strict=False):
            group, places = int(groups[start]), self._places[start:end] - starts[groups[start]]
            table = (self._groups.read if end - start > 1 else self._groups.decoded)(group, names)
            yield table if len(places) == len(table) and (np.diff(places) == 1).all() else table.take(places)

    def frame(self) -> pd.DataFrame:
        """Return all rows at once, as pandas has them."""
        return pd.DataFrame(list(self), columns=self.columns)


def first_of_each(column: pd.Series) -> np.ndarray:
    """Return the place at which each value of a column is first, ascending."""
    return np.unique(pd.factorize(column)[0], return_index=True)[1]


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


def spool(tables: Iterable[pa.Table], schema: pa.Schema) -> Rows:
    """Return the rows of tables from a file without a name in the current folder, which ends with them."""
    file = tempfile.TemporaryFile(dir=".")  # noqa: SIM115  (open as long as its rows)
    write_tables(tables, schema, file)
    file.seek(0)
    return Rows.of(file)
