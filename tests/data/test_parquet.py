"""Parquet files within bounds: what a small file stands for is known before it is read."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data import parquet
from convrec.data.catalog_files import read_raw_rows
from convrec.data.parquet import MAX_ITEMS, open_parquet, parquet_frame, parquet_rows
from convrec.project.errors import InputError


def _repeated(text: str, number: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(number, dtype=np.int32), [text])


def _bomb(path: Path, kind: str) -> Path:
    tables = {
        "rows": lambda: {"title": _repeated("Heat", 5_000_000)},
        "values": lambda: {"title": pa.ListArray.from_arrays([0, 101_000_000], _repeated("x", 101_000_000))},
        "text": lambda: {"title": ["x" * 2**20] * 300},
        "nested text": lambda: {"title": [[{"content": "x" * 2**20}] * 300]},
    }
    pq.write_table(pa.table(tables[kind]()), path, compression="zstd")
    return path


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rows", "5,000,000 rows; at most 1,000,000 are read"),
        pytest.param(
            "values", "101,000,000 values in one column; at most 100,000,000 are read", marks=pytest.mark.slow
        ),
        ("text", "more than 256 MB in the 300 rows up to row 300"),
        ("nested text", "more than 256 MB in the 1 rows up to row 1"),
    ],
)
def test_a_small_file_that_stands_for_a_large_one_is_refused(kind, words, tmp_path):
    path = _bomb(tmp_path / "catalog.parquet", kind)
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match=f"catalog.parquet: {words}"):
        read_raw_rows(path)


def test_rows_that_the_metadata_conceals_are_counted(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": list(range(30))}), path)
    monkeypatch.setattr(parquet, "open_parquet", lambda path, most: pq.ParquetFile(path))
    monkeypatch.setattr(parquet, "_BATCH", 10)
    with pytest.raises(InputError, match="20 rows; at most 15 are read"):
        list(parquet_rows(path, 15))


@pytest.mark.parametrize(("group_rows", "dictionary_bytes"), [(None, 2**20), (7, 2**20), (40, 64)])
def test_rows_are_those_that_were_written(tmp_path, group_rows, dictionary_bytes):
    """Also across row groups, and where a column's dictionary ends in the middle of it."""
    rng = random.Random(0)
    rows = [
        {
            "messages": [{"role": "user", "content": f"{i} {j}" * rng.randrange(9)} for j in range(rng.randrange(4))],
            "seen": None if i % 3 else ["A", None],
            "year": i,
            "text": f"text {i % 5}",
            "bytes": b"x",
        }
        for i in range(100)
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.Table.from_pylist(rows), path, row_group_size=group_rows, dictionary_pagesize_limit=dictionary_bytes
    )
    assert list(parquet_rows(path)) == rows
    frame = parquet_frame(path, ["text", "year"])
    assert frame.to_dict("records") == [{"text": row["text"], "year": row["year"]} for row in rows]


def test_texts_in_views_and_files_without_rows_are_read(tmp_path):
    pq.write_table(pa.table({"title": pa.array(["Heat"], type=pa.string_view())}), tmp_path / "a.parquet")
    assert list(parquet_rows(tmp_path / "a.parquet", MAX_ITEMS)) == [{"title": "Heat"}]
    pq.write_table(pa.table({"title": pa.array([], type=pa.string())}), tmp_path / "b.parquet")
    assert list(parquet_rows(tmp_path / "b.parquet")) == [] and list(parquet_frame(tmp_path / "b.parquet")) == ["title"]


def test_damaged_metadata_end_no_process(tmp_path):
    """Arrow aborts where the metadata of a column contradict themselves; each fifth byte of the footer is zeroed."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"title": ["Heat", "Up"], "genres": [["crime"], ["drama", "comedy"]]}), path)
    content, said = path.read_bytes(), []
    footer = int.from_bytes(content[-8:-4], "little") + 8
    for at in range(len(content) - footer, len(content) - 8, 5):
        path.write_bytes(content[:at] + b"\0" + content[at + 1 :])
        try:
            open_parquet(path).close()
        except InputError as error:
            said.append(str(error))
    assert all(str(path) in message for message in said)
    assert any("the metadata of a column is damaged" in message for message in said)
