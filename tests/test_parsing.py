import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.parsing import format_list, parse_line, parse_list

CATALOG = Catalog([Item("Heat", 1995), Item("Dune", 2021), Item("2001: A Space Odyssey", 1968), Item("Up", 2009)])


@pytest.mark.parametrize(
    ("line", "title", "year", "known"),
    [
        ("Heat (1995)", "Heat", 1995, True),
        ("1. Heat (1995)", "Heat", 1995, True),
        ("12) **Heat** (1995)", "Heat", 1995, True),
        ("- “Heat” (1995) - a classic", "Heat", 1995, True),
        ("* heat  (1996)", "heat", 1996, True),
        ("Heat (1999)", "Heat", 1999, False),
        ("3. Up", "Up", None, True),
        ("Up - you will cry", "Up", None, True),
        ("2001: A Space Odyssey", "2001: A Space Odyssey", None, True),
        ("4. 2001: A Space Odyssey (1968)", "2001: A Space Odyssey", 1968, True),
        ("Sure, here is a list", "Sure, here is a list", None, False),
    ],
)
def test_one_line(line, title, year, known):
    entry = parse_line(line, CATALOG)
    assert entry is not None
    assert (entry.title, entry.year, entry.index is not None) == (title, year, known)


def test_blank_lines_keep_their_rank_and_a_final_newline_opens_none():
    entries = parse_list("Heat (1995)\n\nUp (2009)\n", CATALOG)
    assert [entry.title if entry else None for entry in entries] == ["Heat", None, "Up"]
    assert parse_list("", CATALOG) == []


@given(st.text())
def test_no_string_raises(text):
    parse_list(text, CATALOG)


@given(st.permutations(range(len(CATALOG))))
def test_a_formatted_list_parses_to_itself(order):
    text = format_list([str(CATALOG.items[i]) for i in order])
    assert [entry.index for entry in parse_list(text, CATALOG) if entry] == list(order)
