"""Catalogs of any titles and cells, in every form of file: each row is an item or accounted for, each item is found."""

import csv
import json
import math
import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.catalog_files import load_catalog, read_raw_rows
from convrec.data.parsing import format_list, parse_line, parse_list
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import write_catalog
from convrec.data.titles import fold
from convrec.project.errors import InputError

# Pieces that lists, years, files and alphabets trip over, drawn beside any text at all.
PIECES = [
    "7 ", "Wonders", "Catan", ": ", "1. ", "Uno!", " - ", "(2010)", "(1984)", "(3000)", "[", "]", "|", '"',
    "'", ",",
]  # fmt: skip
PIECES += [
    "\n", "\r\n", "\t", "\u2028", "\x85", "\x1f", "\x01", "\x7f", "\0", "\ud800", "\ufeff", "\u200b", "\u202e",
    "\u05e9",
]  # fmt: skip
PIECES += [
    "e\u0301", "\u00e9", "ﬁ", "İ", "ß", "²", "１９８４", "(１９８４)", "\U0001f3b2", "千", "The ", ", The", "&", "—",
    "**", "_", "#",
]  # fmt: skip
PIECES += ["nan", "None", "0", "1e9", "IV", " (film)", "by ", "\\", "/", "<b>", "`"]
TITLES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join) | st.text(st.characters(), max_size=12)
YEARS = st.none() | st.sampled_from([1984, 2010, 2011, 2012, "2010", " 2010 ", "2010.0", 2010.0, "", " ", math.nan])
BAD_YEARS = st.sampled_from(
    [0, 999, 3000, -1984, 2010.5, "MMX", "year", math.inf, True, [], [2010], {"y": 2010}, 10**30]
)
CELLS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TITLES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TITLES, inner, max_size=2),
    max_leaves=4,
)
ROWS = st.fixed_dictionaries(
    {"title": TITLES | TITLES | TITLES | CELLS},
    optional={
        "year": YEARS | YEARS | BAD_YEARS,
        "aliases": TITLES | st.lists(TITLES, max_size=3) | CELLS,
        "genre": CELLS,
        "plot": TITLES,
        "name": TITLES | CELLS,
    },
)


def _check_rows(rows: list[dict], catalog: Catalog, places: list, quarantine: Quarantine) -> None:
    """Every row is an item, or another spelling of one, or kept aside."""
    aside = {int(row["row"]): row["reason"] for row in quarantine.rows}
    assert len(aside) == len(quarantine.rows) and quarantine.num_read["catalog"] == len(rows) == len(places)
    for number, place in enumerate(places, start=1):
        assert (place is None) == (aside.get(number, "duplicate item") != "duplicate item")
    for index, item in enumerate(catalog.items):
        mine = [number for number, place in enumerate(places, start=1) if place == index]
        assert mine and mine[0] not in aside, "the first row of an item is no duplicate"
        spelt = {fold(item.title), *map(fold, item.aliases)}
        assert all(number in aside or _own_title(rows[number - 1]) in spelt for number in mine)


def _own_title(row: dict) -> str:
    """The folded title of a usable row without the years in brackets at its end."""
    title = " ".join(str(row["title"]).split())
    year = str(row.get("year") if row.get("year") == row.get("year") else "").strip().removesuffix(".0")
    while title.endswith(")") and len(title) > 6 and title[-6] == "(" and title[-5:-1].isdigit():
        own = str(int(title[-5:-1]))
        if year not in ("", "None", own) or not title[:-6].strip():
            break
        title, year = title[:-6].strip(), own
    return fold(title)


def _check_items(catalog: Catalog) -> None:
    """Every item is found by its title and year, and parsed from its own line."""
    ids = [item.id for item in catalog.items]
    assert len(set(ids)) == len(ids) and all(ids)
    lines = [str(item) for item in catalog.items]
    for index, item in enumerate(catalog.items):
        assert catalog.find(item.title, item.year) == catalog.find(item.title, item.year, tolerance=0) == index
        entry = parse_line(lines[index], catalog)
        assert entry is not None and (entry.title, entry.year, entry.index) == (item.title, item.year, index)
        assert index in catalog.readings(item.title, None) and catalog.readings(item.title, item.year)
        for alias in item.aliases:
            assert index in catalog.indices_of_title(alias) and index in catalog.readings(alias, None)
    assert [entry.index for entry in parse_list(format_list(lines), catalog) if entry] == list(range(len(catalog)))


def _check_round_trips(catalog: Catalog, folder) -> None:
    again = Catalog.from_frame(catalog.to_frame())
    write_catalog(catalog, folder / "canonical.parquet")
    quarantine = Quarantine()
    loaded = load_catalog(folder / "canonical.parquet", quarantine)
    assert not quarantine.rows
    for other in (again, loaded):
        assert other.items == catalog.items
        assert [item.aliases for item in other.items] == [item.aliases for item in catalog.items]
        assert [item.metadata for item in other.items] == [item.metadata for item in catalog.items]
        assert [item.id for item in other.items] == [item.id for item in catalog.items]


@settings(max_examples=40)
@given(st.lists(ROWS, max_size=8))
@example([{"title": "Up (2009) (2009)"}, {"title": "(1984)"}, {"title": "Odd (1999)", "year": 2001}])
@example([{"title": "A", "aliases": ["B"]}, {"title": "B"}, {"title": "C", "year": 2000, "aliases": ["B", "c"]}])
@example([{"title": "A", "year": 1999, "aliases": "B"}, {"title": "B", "year": 1999}, {"title": "B", "year": 2000}])
@example([{"title": "A", "genre": ["x|y", None, math.nan, 0]}, {"title": "B", "genre": 0}])
@example([{"title": "A", "year": 10**5000}, {"title": 10**5000}])
def test_every_row_is_an_item_or_kept_aside_and_every_item_is_found(tmp_path_factory, rows):
    quarantine = Quarantine()
    try:
        catalog, places = build_catalog(rows, ("genre", "plot"), quarantine)
    except InputError as error:
        assert len(quarantine.rows) == len(rows) and f"none of its {len(rows)} rows" in str(error)
        return
    _check_rows(rows, catalog, places, quarantine)
    _check_items(catalog)
    _check_round_trips(catalog, tmp_path_factory.mktemp("catalog"))


NAMES = ["7 Wonders", "Catan: Seafarers", "1. FC", "Uno!", "Go", "Chess", "Catan", "1830: Railways & Robber Barons"]
NAMES += [
    "4-4-2", "No. 5", "#1", "3:10", "(un)real", "X (film)", "Nr. 3: Rot", "II. Akt", "a) b", "'71",
]  # fmt: skip
NAMES += [
    "Say “hi”", "A | B", "A, B", "Go 2000", "2000: Go", "I recommend Chess", "千", "...", "?", "\u202eabc",
    "Y (1985) B",
]  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "{}  ", "{n}. {}", "{n}) {}", "- {}", "* **{}**", "{n}. “{}”", "**{n}. {}**"])
@pytest.mark.parametrize("year", [None, 2010])
@pytest.mark.parametrize("reading", ["strict", "lenient"])
def test_items_with_odd_titles_are_parsed_from_their_line_in_every_form(form, year, reading):
    catalog = Catalog([Item(name, year) for name in NAMES])
    wrong = []
    for index, item in enumerate(catalog.items):
        entry = parse_line(form.format(item, n=index + 1), catalog, reading=reading)
        if entry is None or entry.index != index:
            wrong.append((str(item), str(entry)))
    assert not wrong


def _as_csv(path, rows, draw):
    with path.open("w", encoding="utf-8", newline="", errors="replace") as stream:
        writer = csv.DictWriter(
            stream,
            ["title", "year", "aliases", "genre"],
            lineterminator=draw.choice(["\n", "\r\n"]),
            quoting=csv.QUOTE_ALL,
        )
        writer.writeheader()
        writer.writerows(rows)


def _as_json_lines(path, rows, draw):
    path.write_bytes(b"".join(json.dumps(row).encode() + draw.choice([b"\n", b"\r\n", b"\r"]) for row in rows))


def _as_parquet(path, rows, draw):
    clean = [{key: (value or "").encode(errors="replace").decode() for key, value in row.items()} for row in rows]
    pq.write_table(pa.Table.from_pylist(clean), path)


def _as_pickle(path, rows, draw):
    path.write_bytes(pickle.dumps([(row["title"], row["year"]) for row in rows], protocol=draw.randrange(6)))


WRITERS = {"csv": _as_csv, "jsonl": _as_json_lines, "parquet": _as_parquet, "pkl": _as_pickle}
PLAIN_ROWS = st.fixed_dictionaries(
    {
        "title": TITLES,
        "year": st.sampled_from([None, "", "1984", "2010", "2010.0", "3000", "MM"]),
        "aliases": TITLES,
        "genre": TITLES,
    }
)


@pytest.mark.parametrize("kind", list(WRITERS))
@settings(max_examples=20)
@given(rows=st.lists(PLAIN_ROWS, min_size=1, max_size=6), seed=st.integers(0, 9))
def test_a_file_of_any_kind_gives_what_its_rows_give(tmp_path_factory, kind, rows, seed):
    folder = tmp_path_factory.mktemp(kind)
    path = folder / f"catalog.{kind}"
    WRITERS[kind](path, rows, random.Random(seed))
    plain = rows
    if kind in ("csv", "parquet"):  # text that is no UTF-8 cannot be in these files
        plain = [{k: (v or "").encode(errors="replace").decode() for k, v in row.items()} for row in rows]
    fields = () if kind == "pkl" else ("genre",)
    if kind == "pkl":
        plain = [{"title": row["title"], "year": row["year"]} for row in rows]
    quarantines = Quarantine(), Quarantine()
    try:
        expected, places = build_catalog(plain, fields, quarantines[0])
    except InputError:
        with pytest.raises(InputError, match=f"none of its {len(rows)} rows"):
            load_catalog(path, quarantines[1])
    else:
        _check_rows(plain, expected, places, quarantines[0])
        catalog = load_catalog(path, quarantines[1])
        assert [(i.title, i.year, i.aliases, i.metadata) for i in catalog.items] == [
            (i.title, i.year, i.aliases, i.metadata) for i in expected.items
        ]
    assert quarantines[0].rows == quarantines[1].rows


GAMES = [
    {"title": f"Game {n}", "year": "2010" if n % 2 else None, "aliases": f"G{n}", "genre": "a|b"} for n in range(6)
]
DAMAGE = [
    b"", b"\0", b"\xff", b"\n", b"\r", b'"', b",", b"{", b"[" * 3000, b"9" * 5000, b"r\xff\xff\xff\x7f",
    b"\x80", b"a",
]  # fmt: skip


@pytest.mark.parametrize("kind", list(WRITERS))
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_any_bytes_give_an_error_that_names_the_file_or_rows(tmp_path_factory, kind, seed):
    folder, draw = tmp_path_factory.mktemp(kind), random.Random(seed)
    path = folder / f"catalog.{kind}"
    WRITERS[kind](path, GAMES, draw)
    content = bytearray(path.read_bytes())
    for _ in range(draw.randrange(1, 4)):
        start = draw.randrange(len(content) + 1)
        content[start : start + draw.choice([0, 0, 1, 1, 1, 8, len(content)])] = draw.choice(DAMAGE)
    path.write_bytes(bytes(content))
    quarantine = Quarantine()
    try:
        rows = read_raw_rows(path)
        catalog = load_catalog(path, quarantine)
    except InputError as error:
        assert str(path) in str(error) or "none of its" in str(error)
        return
    usable = len(rows) - sum(row["reason"] != "duplicate item" for row in quarantine.rows)
    assert 0 < len(catalog) <= usable <= quarantine.num_read["catalog"] == len(rows)
    _check_items(catalog)
    _check_round_trips(catalog, folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", b"film,year\nHeat,1995\n", "column 'title' is missing"),
        ("c.csv", b"title,year\nHeat\n", "row 2: fewer fields"),
        ("c.csv", b"title,year\nGood, Bad,1995\n", "row 2: more fields"),
        ("c.jsonl", b'{"title": "Heat"}\n{"title"\n', "row 2: not JSON"),
        ("c.jsonl", b'{"title": "Heat", "title": "Up"}\n', "row 1: field 'title' stands twice"),
        ("c.pkl", b"no pickle", "not a readable pickle"),
        ("c.pkl", pickle.dumps({"Heat": 1995}), "no plain list"),
        ("c.txt", b"Heat", "catalogs are read from"),
        ("c.jsonl", b'{"title": "Heat", "year": ' + b"9" * 5000 + b"}", "row 1: not readable JSON"),
        ("c.jsonl", b"[" * 100_000, "row 1: not readable JSON"),
        ("c.csv", b'title,year\n"' + b"x" * 200_000 + b'",1995', "not readable as CSV"),
        ("c.csv", b"title,year,title\nHeat,1995,Up\n", "a column stands twice"),
        ("c.csv", b'title\n"Heat\nUp\nDune\n', "close every quote"),
        ("c.csv", "title\nHeat\n".encode("utf-16"), "byte 0 is not UTF-8; convert"),
        ("c.csv", b"title\n" + b"x\n" * 9_000 + b"Am\xe9lie\n", "byte 18008 is not UTF-8; convert"),
        ("c.jsonl", b'{"title": "Heat"}\n{"title": "Am\xe9lie"}\n', "row 2: not UTF-8; convert"),
        ("c.jsonl", b'{"title": "Heat", "a\\ud800": 1}\n', r"column 'a\\ud800': NUL or half a character; rename"),
        ("c.jsonl", b"", "none of its 0 rows can be used .it is empty.; every row needs a title"),
        ("c.pkl", pickle.dumps([("Heat", [1995])]), "row 1: a title is text and a year a number"),
        ("c.pkl", b"\x80\x04]r\xff\xff\xff\x7f.", "no plain list|none of its 0 rows|not a readable"),
        ("c.parquet", b"PAR1PAR1", "not a readable Parquet file"),
    ],
)
def test_files_of_bad_bytes_are_told(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_catalog(tmp_path / name, Quarantine())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"titel": ["Heat"]}, "no title.; every row needs a title"),
        ({"title": [["Heat"]]}, "title is no text"),
        ({"title": ["Heat"], "year": [[1995]]}, "year is no number"),
        ({"title": ["Heat"], "metadata": ["[1]"]}, "row 1: field 'metadata' is not a JSON object"),
        ({"title": ["Heat"], "metadata": ["[" * 100_000]}, "row 1: field 'metadata' is not a JSON object"),
    ],
)
def test_parquet_catalogs_of_wrong_types_are_told(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=message):
        load_catalog(tmp_path / "c.parquet", Quarantine())


def test_metadata_does_not_re_own_title_and_year(tmp_path):
    pq.write_table(
        pa.table({"title": ["Heat"], "metadata": ['{"title": "Up", "genre": "crime"}']}), tmp_path / "c.parquet"
    )
    (item,) = load_catalog(tmp_path / "c.parquet", Quarantine()).items
    assert item.title == "Heat" and item.metadata == {"genre": "crime"}


def test_an_item_is_found_by_its_own_title_before_the_alias_of_another():
    games = Catalog(
        [
            Item("Reversi", None, aliases=("Othello", "reversi")),
            Item("Othello", None),
            Item("Risk", 1957, aliases=("Risiko",)),
            Item("Risiko", 1957),
            Item("Risiko", 1999),
        ]
    )
    assert games.find("othello", None) == games.find("Othello", 1973) == 1
    assert games.find("Reversi", None) == 0
    assert games.find("Risiko", 1957) == games.find("risiko", 1958) == 3 and games.find("Risiko", 1998) == 4
    assert games.indices_of_title("Othello") == [1, 0] and games.indices_of_title("Risiko") == [3, 4, 2]


def test_missing_values_are_no_metadata_and_zero_is():
    rows = [{"title": "Go", "players": 0, "kind": ["abstract", None, math.nan, "two|players"], "score": math.nan}]
    catalog, _ = build_catalog(rows, ("players", "kind", "score"), Quarantine())
    assert catalog.items[0].metadata == {"players": "0", "kind": "abstract, two, players", "score": ""}
