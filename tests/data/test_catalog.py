import os
import pickle

import pytest

from convrec.data.catalog import Catalog, Item, LeftOut, build_catalog, read_rows
from convrec.errors import InputError


def test_find_takes_the_nearest_year_within_the_tolerance(catalog):
    assert catalog.items[catalog.find("dune", 2019)].year == 2021
    assert catalog.items[catalog.find("DUNE", 1985)].year == 1984
    assert catalog.find("Dune", 2000) is None
    assert catalog.find("Dune", None) is None, "ambiguous without a year"
    assert catalog.items[catalog.find("  uP ", None)].year == 2009


def test_a_frame_holds_everything(catalog):
    again = Catalog.from_frame(catalog.to_frame())
    assert again.items == catalog.items
    assert again.items[0].metadata == catalog.items[0].metadata


def test_a_catalog_refuses_duplicates():
    with pytest.raises(InputError, match="stands twice"):
        Catalog([Item("Heat", 1995), Item("HEAT", 1995)])


def test_unusable_rows_are_left_out_with_their_reason():
    rows = [{"title": "Heat", "year": 1995}, {"title": "heat ", "year": "1995"}, {"title": "Up", "year": ""}]
    rows += [{"title": "", "year": 2000}, {"title": "Old", "year": 12}]
    left_out = LeftOut()
    assert len(build_catalog(rows, (), left_out)) == 1
    reasons = [(row["row"], row["reason"]) for row in left_out.rows]
    assert reasons == [("2", "duplicate item"), ("3", "no year"), ("4", "no title"), ("5", "year out of range")]


def test_a_catalog_without_years_is_one_clear_error():
    with pytest.raises(InputError, match=r"none of its 2 rows can be used \(no year\)"):
        build_catalog([{"title": "Heat"}, {"title": "Up"}], (), LeftOut())


def test_csv_json_lines_and_pickle_read_alike(tmp_path):
    (tmp_path / "c.csv").write_text("title,year\nHeat,1995\n", encoding="utf-8")
    (tmp_path / "c.jsonl").write_text('{"title": "Heat", "year": 1995}\n', encoding="utf-8")
    (tmp_path / "c.pkl").write_bytes(pickle.dumps([("Heat", 1995)]))
    for name in ("c.csv", "c.jsonl", "c.pkl"):
        assert build_catalog(read_rows(tmp_path / name), (), LeftOut()).items == (Item("Heat", 1995),)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", b"name,year\nHeat,1995\n", "column 'title' is missing"),
        ("c.csv", b"title,year\nHeat\n", "row 2: fewer fields"),
        ("c.csv", b"title,year\nGood, Bad,1995\n", "row 2: more fields"),
        ("c.csv", b"title,year\n\xff\xfe,1\n", "is not UTF-8"),
        ("c.jsonl", b'{"title": "Heat"}\n{"title"\n', "row 2: not JSON"),
        ("c.jsonl", b"[1]\n", "row 1: a JSON object is needed"),
        ("c.pkl", b"no pickle", "not a readable pickle"),
        ("c.pkl", pickle.dumps({"Heat": 1995}), "no plain list"),
        ("c.txt", b"Heat", "catalogs are read from"),
    ],
)
def test_malformed_files_name_row_and_field(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path / name)


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    (tmp_path / "c.pkl").write_bytes(pickle.dumps([Attack()]))
    with pytest.raises(InputError, match="only plain lists"):
        read_rows(tmp_path / "c.pkl")
    assert not (tmp_path / "harm").exists()


def test_first_unseen_keeps_the_order_and_leaves_out_every_film_of_a_seen_title(catalog):
    order = range(len(catalog) - 1, -1, -1)
    expected = [item for item in reversed(catalog.items) if item.title != "Dune"]
    assert catalog.first_unseen(order, ["  DUNE"], 2) == expected[:2]
    assert catalog.first_unseen(order, [], 10**6) == list(reversed(catalog.items))
