"""The canonical tables: their types, each rule broken once, and files that are the same for the same rows."""

import random

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.catalog import Catalog, Item
from convrec.data.schemas import (
    CATALOG_TYPES,
    CONVERSATION_TYPES,
    OPTIONAL,
    conform,
    write_catalog,
    write_conversations,
)
from convrec.project.errors import InputError

USER = {"role": "user", "content": "Hello \u202e\n|"}
ROW = {
    **{"conversation_id": "c1", "prompt_id": "p1", "user_id": "u1", "date": "2022-01-31"},
    "messages": [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Hm."}],
    "groundtruth": [{"title": "Heat", "year": 1995}, {"title": "Chess", "year": None}],
    **{"seen_titles": ["Dune"], "disliked_titles": ["Dune"], "repeatable_titles": ["Up"]},
}


def test_rows_get_the_canonical_columns_and_types():
    extra = [ROW | {"more": 1}, ROW | {"more": 2, "date": "", "seen_titles": [], "disliked_titles": []}]
    frame = conform(pd.DataFrame(extra, index=[5, 9])[["more", *reversed(ROW)]])
    assert frame.columns.tolist() == CONVERSATION_TYPES.names
    assert [frame[name].dtype for name in frame] == [pd.ArrowDtype(kind) for kind in CONVERSATION_TYPES.types]
    assert frame.to_dict("records") == [ROW, ROW | {"date": "", "seen_titles": [], "disliked_titles": []}]
    assert frame.index.tolist() == [0, 1]
    pd.testing.assert_frame_equal(conform(frame), frame)


OF_OTHER_TYPES = {"conversation_id": 3, "messages": [5], "groundtruth": [{"title": "Heat", "year": "x"}]}
OF_OTHER_TYPES |= {"seen_titles": "Dune"}


@pytest.mark.parametrize(("column", "value"), OF_OTHER_TYPES.items())
def test_a_column_of_another_type_is_named(column, value):
    with pytest.raises(InputError, match=f"conversations: not in the canonical form .*{column}.*docs/data"):
        conform(pd.DataFrame([ROW | {column: value}]))


def test_rows_without_an_optional_column_get_its_default():
    rows = conform(pd.DataFrame([ROW, ROW], index=[3, 3]).drop(columns=list(OPTIONAL)))
    assert rows.to_dict("records") == [ROW | {"user_id": "", "disliked_titles": [], "repeatable_titles": []}] * 2


@pytest.mark.parametrize("column", sorted(set(ROW) - set(OPTIONAL)))
def test_a_missing_column_is_named(column):
    with pytest.raises(InputError, match=column):
        conform(pd.DataFrame([ROW]).drop(columns=column))


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = [
        ROW | {"prompt_id": f"p{number}", "date": random.Random(number).choice(["", "2022-01-01"])}
        for number in range(50)
    ]
    forms = [
        conform(pd.DataFrame(rows)),
        conform(pd.DataFrame(rows, index=range(50, 0, -1))),
        conform(pd.DataFrame(pa.Table.from_pylist(rows, CONVERSATION_TYPES).to_pandas(types_mapper=pd.ArrowDtype))),
        conform(pd.DataFrame(rows + rows))[:50],
    ]
    files = []
    for number, frame in enumerate(forms):
        write_conversations(frame, tmp_path / f"{number}.parquet")
        files.append((tmp_path / f"{number}.parquet").read_bytes())
    assert len(set(files)) == 1
    table = pq.read_table(tmp_path / "0.parquet")
    assert table.schema.names == CONVERSATION_TYPES.names and table.schema.metadata is None
    assert table.cast(CONVERSATION_TYPES).to_pylist() == table.to_pylist() == rows


def test_the_same_catalog_gives_the_same_bytes(tmp_path):
    items = [Item("Heat", 1995, {"genre": "crime"}, ("Hitze",)), Item("Chess", None)]
    write_catalog(Catalog(items), tmp_path / "one.parquet")
    write_catalog(Catalog.read(tmp_path / "one.parquet"), tmp_path / "two.parquet")
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    table = pq.read_table(tmp_path / "one.parquet")
    assert table.schema.names == CATALOG_TYPES.names and table.schema.metadata is None
