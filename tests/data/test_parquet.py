import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.parquet import parquet_columns, parquet_frame, parquet_rows
from convrec.project.errors import InputError

ROWS = [
    {"messages": [{"role": "user", "content": f"{n}"}], "seen": None if n % 3 else ["A"], "year": n} for n in range(9)
]


@pytest.mark.parametrize(("kind", "first"), [(pa.float32(), 2**24), (pa.float64(), 2**53)])
def test_ids_beyond_the_integers_of_a_float_are_refused(tmp_path, kind, first):
    path = tmp_path / "rows.parquet"
    rows = [{"id": 7.0, "truths": [{"id": float(first)}]}, {"id": math.nan, "truths": None}]
    pq.write_table(pa.table({"id": pa.array([1 - first, None], kind), "gross": [1e18, math.nan]}), path)
    assert [row["id"] for row in parquet_rows(path)] == [1 - first, None]
    inner = pa.list_(pa.struct({"id": kind}))
    pq.write_table(pa.Table.from_pylist(rows, pa.schema({"id": kind, "truths": inner})), path)
    message = rf"rows.parquet: column 'truths.id' of type {kind} holds the id {first}, .* write ids as integers or text"
    with pytest.raises(InputError, match=message):
        list(parquet_rows(path))


def test_a_file_that_is_not_readable_is_named(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"PAR1" * 9, b""):
        path.write_bytes(content)
        for read in (parquet_columns, parquet_frame, lambda path: list(parquet_rows(path))):
            with pytest.raises(InputError, match=r"rows.parquet: not a readable Parquet file .*write it again"):
                read(path)
    pq.write_table(pa.table([[1], [2]], names=["day", "day"]), path)
    with pytest.raises(InputError, match="rows.parquet: 2 columns are named 'day'; rename or remove all but one"):
        parquet_columns(path)
    pq.write_table(pa.table({"day": pa.array([10**15]).view(pa.timestamp("us", "Mars/Phobos"))}), path)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        list(parquet_rows(path))
