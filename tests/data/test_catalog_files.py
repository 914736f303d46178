"""Catalogs of any titles and cells, in every form of file: each row is an item or accounted for, each item is found."""

import gzip
import math
import pickle

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.catalog_files import load_catalog
from convrec.data.matching import Truth
from convrec.data.parsing import format_list, parse_line, parse_list
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import write_catalog
from convrec.data.titles import fold, natural, normalise_text
from convrec.project.errors import InputError

# Pieces that lists, years, files and alphabets trip over, drawn beside any text at all.
PIECES = ["7 ", "Wonders", "Catan", ": ", "1. ", "Uno!", " - ", "(2010)", "(1984)", "(3000)", "[", "]", "|", '"', "'"]
PIECES += ["\n", "\r\n", "\t", "\u2028", "\x85", "\0", "\ud800", "\ufeff", "\u200b", "\u202e", "\u05e9", "**", "_"]
PIECES += ["e\u0301", "\u00e9", "ﬁ", "İ", "ß", "²", "１９８４", "(１９８４)", "\U0001f3b2", "千", "The ", ", The"]
PIECES += [",", "#", "&", "nan"]
TITLES = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join) | st.text(st.characters(), max_size=12)
YEARS = st.none() | st.sampled_from(
    [1984, 2010, 2011, 2012, "2010", " 2010 ", "2010.0", 2010.0, "", " ", math.nan, "NA"]
)
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
    title = natural(" ".join(normalise_text(str(row["title"])).split()))
    year = str(row.get("year") if row.get("year") == row.get("year") else "").strip().removesuffix(".0")
    year = "" if year == "NA" else year
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
    write_catalog(catalog, folder / "canonical.parquet")
    other = load_catalog(folder / "canonical.parquet", Quarantine())
    found, wanted = ([(own, own.aliases, own.metadata, own.id) for own in each.items] for each in (other, catalog))
    assert found == wanted


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
NAMES += ["4-4-2", "No. 5", "#1", "3:10", "(un)real", "X (film)", "Nr. 3: Rot", "a) b", "Say “hi”", "A | B", "A, B"]
NAMES += ["'71", "Go 2000", "2000: Go", "I recommend Chess", "千", "...", "?", "\u200dabc", "Y (1985) B"]


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


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "pkl"])
def test_a_file_of_any_kind_gives_what_its_rows_give(tmp_path, kind):
    rows = [{"title": name, "year": year, "aliases": "A|B", "genre": "x"} for name in NAMES for year in (None, "1984")]
    path, frame, fields = tmp_path / f"catalog.{kind}", pd.DataFrame(rows), ("genre",)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        path.write_bytes(pickle.dumps([(row["title"], row["year"]) for row in rows]))
        rows, fields = [{"title": row["title"], "year": row["year"]} for row in rows], ()
    expected, places = build_catalog(rows, fields, Quarantine())
    catalog = load_catalog(path, Quarantine())
    assert catalog.items == expected.items and places == list(range(len(rows)))
    assert [(item.aliases, item.metadata) for item in catalog.items] == [
        (item.aliases, item.metadata) for item in expected.items
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", b"film,year\nHeat,1995\n", "column 'title' is missing"),
        ("c.csv", b"title,year\nGood, Bad,1995\n", "found more fields .*quote fields"),
        ("c.csv", b'title\n"Heat\nUp\nDune\n', "close every quote"),
        ("c.csv", gzip.compress(b"title\nHeat\n", mtime=0), "c.csv: compressed with gzip; unpack it"),
        ("c.jsonl", gzip.compress(b'{"title": "Heat"}\n', mtime=0), "c.jsonl: compressed with gzip; unpack it"),
        ("c.csv", b"PK\x03\x04\x14\0", "c.csv: a ZIP archive or an Excel workbook; unpack it, or save it as"),
        ("c.csv", b"PAR1\x15\x04", "c.csv: a Parquet file; name it .parquet"),
        ("c.csv", b"title,year,title\nHeat,1995,Heat\n", "c.csv: 2 columns are named 'title'; rename or remove"),
        ("c.csv", b"title, title\nHeat,Heat\n", "c.csv: 2 columns are named 'title'; rename or remove"),
        ("c.csv", "title\nHeat\n".encode("utf-16"), "c.csv: encoded in UTF-16 or UTF-32; save it as UTF-8"),
        ("c.csv", "title\nHeat\n".encode("utf-16-be"), "encoded in UTF-16 or UTF-32; save it as UTF-8"),
        ("c.jsonl", b'{"title": "Heat"}\n\n{"title"\n', "line 3: not JSON; give one JSON object"),
        ("c.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("c.jsonl", b'{"title": "Heat"}\n{"title": "Am\xe9lie"}\n', "line 2: not UTF-8; give"),
        ("c.jsonl", b'{"title": "Heat", "a\\ud800": 1}\n', r"column 'a\\ud800': NUL or half a character; rename"),
        ("c.jsonl", b"", "none of its 0 rows can be used .it is empty.; every row needs a title"),
        ("c.pkl", b"no pickle", "not a readable pickle"),
        ("c.pkl", pickle.dumps({"Heat": 1995}), "no plain list"),
        ("c.pkl", pickle.dumps([("Heat", [1995])]), "year is no number"),
        ("c.pkl", b"\x80\x04]r\xff\xff\xff\x7f.", "no plain list|none of its 0 rows|not a readable"),
        ("c.txt", b"Heat", "catalogs are read from"),
        ("c.parquet", b"PAR1PAR1", "not a readable Parquet file"),
    ],
)
def test_files_of_bad_bytes_are_told(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_catalog(tmp_path / name, Quarantine())


def test_a_csv_is_utf_8_or_else_latin_1_and_a_field_may_be_long(tmp_path):
    path, plot = tmp_path / "c.csv", "word " * 40_000
    lines = ["title,plot", "Les Misérables,x\x85y", f'"Ångström ",{plot}', "Schindler’s List,"]
    path.write_bytes(b"\r\n".join(line.encode("cp1252" if "’" in line else "utf-8") for line in lines))
    catalog = load_catalog(path, Quarantine())
    assert [item.title for item in catalog.items] == ["Les Misérables", "Ångström", "Schindler’s List"]
    assert [item.metadata["plot"] for item in catalog.items] == ["x y", plot.strip(), ""]


def test_spaces_around_names_and_before_quotes_do_not_count(tmp_path):
    path = tmp_path / "c.csv"
    rows = ['Heat, 1995, "crime, drama", ', '"Up, ""Up""\n  again", 2009,  ok "a b",', "Alien,1979,,x"]
    path.write_text("\n".join(["title, year , genre, ,", *(f"{row}," for row in rows)]))
    items = load_catalog(path, Quarantine()).items
    assert [str(item) for item in items] == ["Heat (1995)", 'Up, "Up" again (2009)', "Alien (1979)"]
    assert [item.metadata["genre"] for item in items] == ["crime, drama", 'ok "a b"', ""]


def test_what_is_invisible_or_markup_is_no_part_of_a_catalog(tmp_path):
    path = tmp_path / "c.csv"
    lines = "name,genres,aliases\n\u200eHeat (1995)\u200e,Crime &amp; Drama|x\u200b,Fuego\u200e\n\ufeffAlien,,\n"
    path.write_text(lines)
    heat, alien = load_catalog(path, Quarantine()).items
    assert (str(heat), heat.metadata, heat.aliases) == ("Heat (1995)", {"genres": "Crime & Drama, x"}, ("Fuego",))
    assert alien.title == "Alien"


def test_a_damaged_canonical_table_is_named(tmp_path):
    cells = {"item_id": ["7"], "title": ["Hello"], "year": [2015], "aliases": [["Hi"]], "metadata": ["{}"]}
    path = tmp_path / "c.PARQUET"
    for damage in ({"title": [None]}, {"aliases": [None]}, {"metadata": ["{"]}, {"metadata": ["[1]"]}):
        pq.write_table(pa.table(cells | damage), path)
        with pytest.raises(InputError, match="c.PARQUET: not a canonical catalog"):
            load_catalog(path, Quarantine())


def test_of_the_items_of_a_title_those_of_an_alias_come_last():
    games = Catalog([Item("Reversi", None, aliases=("Othello", "reversi")), Item("Othello", None)])
    assert games.indices_of_title("Othello") == [1, 0] and games.find("Othello", 1973) == 1


def test_missing_values_are_no_metadata_and_zero_is():
    kinds = ["abstract", None, math.nan, "NULL", r"\N", "two|players"]
    rows = [{"title": "Go", "players": 0, "kind": kinds, "score": math.nan, "aliases": "nan|Weiqi", "id": "NA"}]
    catalog, _ = build_catalog(rows, ("players", "kind", "score"), Quarantine())
    assert catalog.items[0].aliases == ("Weiqi",) and catalog.items[0].own_id is None
    assert catalog.items[0].metadata == {"players": "0", "kind": "abstract, two, players", "score": ""}


def test_a_title_and_year_are_read_alike_in_catalogs_truths_and_lists(tmp_path):
    rows = 'title,year\n"Matrix, The",1999\n"Avventura, L\'",NA\nFringe,2008–2013\nThe Wire (2002–2008),\\N\n'
    (tmp_path / "c.csv").write_text(rows, encoding="utf-8")
    (tmp_path / "n.csv").write_text('name,year\n"Matrix, The (1999)",NULL\n"Fringe (2008– )",nan\n', encoding="utf-8")
    catalog = load_catalog(tmp_path / "c.csv", Quarantine())
    lines = ["The Matrix (1999)", "L'Avventura", "Fringe (2008)", "The Wire (2002)"]
    assert [str(item) for item in catalog.items] == lines
    assert [str(item) for item in load_catalog(tmp_path / "n.csv", Quarantine()).items] == [lines[0], lines[2]]
    films = [("Matrix, The", "1999"), ("Avventura, L'", "NULL"), ("Fringe", "2008–2013")]
    for place, (title, year) in enumerate(films):
        assert catalog.find(*Truth.of([title, year])) == place
        text = f"3. {title}" if year == "NULL" else f"3. {title} ({year})"
        assert parse_line(text, catalog).index == place
        entry = parse_line(text, catalog, reading="lenient")
        assert catalog.readings(entry.title, entry.year) == [place]
