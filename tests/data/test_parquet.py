import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.parquet import parquet_columns, parquet_frame, parquet_rows
from convrec.project.errors import InputError

ROWS = [
    {"messages": [{"role": "user", "content": f"{n}"}], "seen": None if n % 3 else ["A"], "year": n} for n in range(9)
]


def test_rows_and_columns_are_those_that_were_written(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    assert list(parquet_rows(path)) == ROWS and parquet_columns(path) == ["messages", "seen", "year"]
    assert parquet_frame(path, ["year", "seen"])["year"].tolist() == list(range(9))


def test_a_file_that_is_not_readable_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"PAR1" * 9, b""):
        path.write_bytes(content)
        for read in (parquet_columns, parquet_frame, lambda path: list(parquet_rows(path))):
            with pytest.raises(InputError, match=r"rows.parquet: not a readable Parquet file .*write it again"):
                read(path)
    pq.write_table(pa.table({"day": pa.array([10**15]).view(pa.timestamp("us", "Mars/Phobos"))}), path)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(parquet_rows(path))
