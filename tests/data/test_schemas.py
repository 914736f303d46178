"""The canonical tables: their types, each rule broken once, and files that are the same for the same rows."""

import random

import pyarrow.parquet as pq
import pytest

from convrec.data.catalog import Catalog, Item
from convrec.data.row_files import GROUP
from convrec.data.schemas import (
    CATALOG_TYPES,
    CONVERSATION_TYPES,
    OPTIONAL,
    SOURCE_TYPES,
    conform,
    spooled,
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
    table = conform([dict(reversed(row.items())) for row in extra])
    assert table.schema == SOURCE_TYPES and SOURCE_TYPES.names == [*CONVERSATION_TYPES.names, "split"]
    expected = [ROW, ROW | {"date": "", "seen_titles": [], "disliked_titles": []}]
    assert table.drop("split").to_pylist() == expected and conform(table.to_pylist()) == table


OF_OTHER_TYPES = {"conversation_id": 3, "messages": [5], "groundtruth": [{"title": "Heat", "year": "x"}]}
OF_OTHER_TYPES |= {"seen_titles": "Dune"}


@pytest.mark.parametrize(("column", "value"), OF_OTHER_TYPES.items())
def test_a_column_of_another_type_is_named(column, value):
    with pytest.raises(InputError, match=f"conversations: not in the canonical form .*{column}.*docs/data"):
        conform([ROW | {column: value}])


def test_rows_without_an_optional_column_get_its_default():
    row = {name: value for name, value in ROW.items() if name not in OPTIONAL}
    assert conform([row, row]).to_pylist() == [{**row, **OPTIONAL}] * 2


@pytest.mark.parametrize("column", sorted(set(ROW) - set(OPTIONAL)))
def test_a_missing_column_is_named(column):
    with pytest.raises(InputError, match=column):
        conform([{name: value for name, value in ROW.items() if name != column}])


def test_the_same_rows_give_the_same_bytes(tmp_path):
    rows = [
        ROW | {"prompt_id": f"p{number}", "date": random.Random(number).choice(["", "2022-01-01"])}
        for number in range(GROUP + 50)
    ]
    forms = [spooled(rows), spooled(row | {"split": "train"} for row in rows), spooled(rows + rows)[: len(rows)]]
    forms += [spooled(rows[:70]) + spooled(rows[70:]), spooled(rows[::-1])[::-1]]
    files = []
    for number, form in enumerate(forms):
        write_conversations(form, tmp_path / f"{number}.parquet")
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
