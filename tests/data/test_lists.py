"""What rewards and scores read of a list, beside the plain way: every line is parsed, and all are compared."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.data.lists import read_list
from convrec.data.openings import UNSURE, openings
from convrec.data.parsing import MAX_LINE, parse_line
from convrec.data.sources.synthetic import embedded_rows
from convrec.data.titles import fold
from tests.rows import list_quality

TITLES = ["Heat", "The Hunger Games", "2001: A Space Odyssey", "3 Women", "*batteries not included", "[Rec]²", "'71"]
TITLES += ["9", "(500) Days of Summer", "I, Robot", "X-Men", "V. by Thomas Pynchon", "a) B", "Vi", "Amélie", "Straße"]
TITLES += ["7. Hour", "Hour", "He At", "Se7en", "Seven", "七人の侍", "<b>Bold</b>", "Foo *Bar* Baz", "Mr. & Mrs. Smith"]
ITEMS = [Item(title, 1960 + 2 * at) for at, title in enumerate(TITLES)]
ITEMS += [Item("Dune", 1984), Item("Dune", 2021), Item("Chess", None, aliases=("Schach", "Foo Bar Baz (1990)"))]
ODD = Catalog(ITEMS)
EMBEDDED = Catalog([Item(row["title"], int(row["year"])) for row in embedded_rows()])
MARKS = ["", "1. ", "12. ", "3) ", "(4) ", "5: ", "#6. ", "iv. ", "x) ", "b) ", "- ", "* ", "• ", "> ", "**", "1. **"]
MARKS += ["- **", "* *", "“", '"', "<b>", "  ", "1.\t", "1\ufe0f\u20e3 ", "[", "1] "]
ENDS = ["", " (1984)", "** (2021)", "**", " - slow", ", and tense", "” (1990)", '"', "</b>", " (1990) (1990)", "*", ";"]
ENDS += ["** - (a film)", " (1960) [1962]", " (dubbed)", " [1960]", "\u0301", " …"]
PIECES = st.one_of(
    st.text(max_size=2), st.sampled_from([" ", "  ", "\t", "*", "_", "`", "<", "(", ")", "i. ", "ſ", "K"])
)


@st.composite
def written_lines(draw, catalog):
    """Draw a line of the catalog, or a title, between marks and remarks, with up to two edits."""
    item = draw(st.sampled_from(catalog.items))
    line = draw(
        st.sampled_from([str(item), item.title, str(item).lower(), f"{item.title} ({(item.year or 1990) + 1})"])
    )
    line = draw(st.sampled_from(MARKS)) + line + draw(st.sampled_from(ENDS))
    for at, removed, piece in draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), PIECES), max_size=2)):
        line = line[:at] + piece + line[at + removed :]
    return line.replace("\n", " ")


def _plain_quality(entries, lines, seen_titles, catalog, num_ranks):
    entries = [entry for entry in entries if entry is not None]
    seen = catalog.indices_of_titles(seen_titles)
    folded = {fold(title) for title in seen_titles}
    named = [entry.index if entry.index is not None else (fold(entry.title), entry.year) for entry in entries]
    num_seen = sum(name in seen if isinstance(name, int) else name[0] in folded for name in named)
    exact = all(catalog.index_of_line(line) is not None for line in lines)
    size = len(entries)
    return {
        "in_catalog": sum(isinstance(name, int) for name in named) / max(1, size),
        "format": float(exact and size == num_ranks),
        "duplicates": (size - len(set(named))) / max(1, size),
        "seen": num_seen / max(1, size),
        "length": float(size),
    }


def _check(lines, catalog, seen_titles=()):
    """Compare a list with its lines, each parsed."""
    entries = [parse_line(line, catalog) for line in lines]
    found = read_list("\n".join(lines), catalog)
    assert found.items == [entry and entry.index for entry in entries]
    known = [(rank, entry) for rank, entry in enumerate(entries) if entry and entry.index is not None]
    years = [found.years.get(rank, catalog.items[entry.index].year) for rank, entry in known]
    assert years == [entry.year for _, entry in known]
    left = [entry for entry in entries if entry and entry.index is None]
    assert sorted(map(str, found.others)) == sorted(
        str(entry) for entry in left if entry not in [parse_line(line, catalog) for line in found.unparsed]
    )
    assert len(found.others) + len(found.unparsed) == len(left)
    seen_titles = list(seen_titles)
    for titles in (seen_titles, [*seen_titles, *(entry.title for entry in left[:2])]):
        expected = _plain_quality(entries, lines, titles, catalog, len(lines))
        assert list_quality("\n".join(lines), titles, catalog, len(lines)) == expected


@given(
    st.lists(written_lines(ODD), min_size=1, max_size=6), st.lists(st.sampled_from(["heat", "Dune", "No"]), max_size=2)
)
@example(["1.\tHeat (1960)", "He  at (1960)", "He at (1960)"], [])
@example(["Foo *Bar* Baz (1990)", "foo bar baz (1990)", "Foo Bar Baz"], ["Foo Bar Baz"])
@example(["<b>No</b> film", "No film", "no  Film"], ["No film"])
@example(["(1) Heat (1960)", "a) Heat (1960)", "iv. Heat (1960)", "IV. X-Men (1980)", "7. Hour (1992)"], [])
@example(["K\u0301ino (1990)", "Kino (1990)", "", "-", "9.", "Heat " * MAX_LINE], ["kino"])
def test_a_list_is_read_as_its_lines_are_parsed(lines, seen_titles):
    _check(lines, ODD, seen_titles)


@given(st.lists(written_lines(EMBEDDED), min_size=1, max_size=20))
def test_edited_lines_of_the_embedded_catalog(lines):
    _check(lines, EMBEDDED, ["Heat", "Nowhere"])


@given(written_lines(ODD))
def test_what_a_line_names_has_the_line_s_opening(line):
    entry, (opening,) = parse_line(line, ODD), openings([line])
    if entry is not None and opening not in UNSURE:
        assert openings([fold(entry.title)]) == [opening]
    if opening not in ODD.openings:
        assert entry is not None and entry.index is None


@pytest.mark.slow
def test_the_opening_of_a_character_is_that_of_its_folded_form():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and chr(code) != "\n"]
    assert openings([f"q{fold(f'a{c}')}" for c in characters]) == openings([f"qa{c}" for c in characters])


@pytest.mark.parametrize("text", ["", "\n", "Heat (1960)\n", "\n\nHeat (1960)\n \n"])
def test_blank_lines_name_nothing(text):
    _check(text.split("\n"), ODD)
