"""Lazy rows are those of the file, whichever way they are asked for."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data import row_files
from convrec.data.row_files import Rows, chosen_rows, column_of, first_of_each, joined, write_tables

TABLE = pa.table(
    {"name": [f"n{place % 7}" for place in range(50)], "items": [[{"year": n}] * (n % 3) for n in range(50)]}
)


@pytest.fixture
def rows(here, monkeypatch):
    monkeypatch.setattr(row_files, "GROUP", 8)
    monkeypatch.setattr(row_files, "_BATCH", 3)
    write_tables((TABLE[start : start + 11] for start in range(0, 50, 11)), TABLE.schema, here / "rows.parquet")
    return Rows(pq.ParquetFile(here / "rows.parquet"))


def test_views_are_as_of_a_list(rows):
    every, order = TABLE.to_pylist(), np.random.default_rng(0).permutation(50)
    views = [rows, rows[7:40:3], rows[::-1], rows[order], rows[order % 3 == 0], rows[:0], rows[9:][[-1, 0, 0]]]
    lists = [
        every,
        every[7:40:3],
        every[::-1],
        [every[n] for n in order],
        [every[n] for n in range(50) if order[n] % 3 == 0],
    ]
    for view, own in zip(views, [*lists, [], [every[-1], every[9], every[9]]], strict=True):
        assert list(view) == own and len(view) == len(own)
        assert view["name"].tolist() == [row["name"] for row in own] == column_of(own, "name").tolist()
        assert list(view.values("items", "name")) == [(row["items"], row["name"]) for row in own]
        assert list(joined(view, rows[3:])) == own + every[3:] == list(joined(view, every[3:]))
    assert [rows[n] for n in (0, 8, -1)] == [every[0], every[8], every[-1]]
    assert list(rows[rows["name"] == "n2"]) == every[2::7] == chosen_rows(every, np.arange(50) % 7 == 2)
    assert first_of_each(rows["name"]).tolist() == list(range(7))
