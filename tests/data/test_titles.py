import sys
from decimal import Decimal

import pytest

from convrec.data.titles import LONGEST_TITLE, fold, natural, normalise, title_and_year, usable_id, usable_title

SAME = {"The Matrix": "Matrix, The", "Amélie": "AMELIE", "Fast & Furious 6": "Fast and Furious 6", "Ωμέγα": "ωμεγα"}
SAME |= {"The Godfather: Part II": "The Godfather Part 2", "Ocean's Eleven": "Ocean’s 11", "น้ำ": "น้\u0e4d\u0e32"}
SAME |= {"Star Wars: Episode IV – A New Hope": "Star Wars Episode IV: A New Hope", "Romeo++Juliet": "Romeo Juliet"}
SAME |= {"L'Avventura": "avventura, l’", "Los Olvidados": "OLVIDADOS, LOS"}
OTHER = {"C+": "C++", "ガラスの城": "カラスの城", "Malcolm X": "Malcolm", "Nine": "9"}


@pytest.mark.parametrize(("one", "other"), [*SAME.items(), *OTHER.items()])
def test_spellings_of_one_title_agree_and_other_titles_do_not(one, other):
    assert (normalise(one) == normalise(other)) == (one in SAME)


IDS = [("c-1", "c-1"), (17, "17"), (0, "0"), (17.0, "17"), (2.0**53 - 1, "9007199254740991"), (Decimal("17.00"), "17")]
IDS += [(Decimal(10**37 + 1), str(10**37 + 1))]
IDS += [(value, "") for value in (Decimal("nan"), None, "", "  ", float("nan"), "NULL", r"\N")]


@pytest.mark.parametrize(("value", "expected"), IDS)
def test_an_id_is_text_or_a_number(value, expected):
    assert usable_id(value, "conversation_id") == expected


@pytest.mark.parametrize(
    "value", [True, 1.5, float("inf"), ["c"], {"c": 1}, b"c", "c\0", "\ud800", Decimal("1.5"), 2.0**53]
)
def test_what_is_no_id_is_told(value):
    with pytest.raises(ValueError, match="conversation_id is neither|NUL or half|several integers; write ids as"):
        usable_id(value, "conversation_id")


def test_a_title_that_repeats_its_year_has_it_once():
    assert usable_title("Up" + " (2009)" * 142, None) == ("Up", 2009)
    assert usable_title("Up (2009)(2009)  (2009)", "2009") == ("Up", 2009)
    assert usable_title("Up (2010) (2009)", None) == ("Up (2010)", 2009)
    assert title_and_year("Up" + " (2009)" * 150_000) == ("Up" + " (2009)" * 149_999, "2009")


@pytest.mark.parametrize(
    "year", ["NA", "n/a", r"\N", "NULL", "nan", "None", " ", "", None, float("nan"), "-", "Unknown"]
)
def test_what_stands_for_no_year_is_none(year):
    assert usable_title("Heat", year) == ("Heat", None)
    assert usable_title("Heat (1995)", year) == ("Heat", 1995)


@pytest.mark.parametrize(
    "years",
    ["2008–2013", "2008-2013", "2008-", "2008– ", "2008 - 2013", "2008/2013", "2008-13", "2008", "2008–Present"],
)
def test_of_a_range_of_years_the_first_counts(years):
    assert usable_title("Fringe", years) == usable_title(f"Fringe ({years})", None) == ("Fringe", 2008)
    assert usable_title(f"Fringe ({years})", years) == ("Fringe", 2008)
    assert usable_title(f"Fringe ({years})", 2009) == (f"Fringe ({years})", 2009)


TAGGED = {"Stranger Things (2016-present)": ("Stranger Things", 2016), "Up (2009) [film]": ("Up", 2009)}
TAGGED |= {"Stranger Things (TV Series 2016– )": ("Stranger Things", 2016), "Cosmos (1980)(TV)": ("Cosmos", 1980)}
TAGGED |= {"Black Mirror (2011-2019) (TV Series)": ("Black Mirror", 2011)}
TAGGED |= {"Chernobyl (2019) (TV Mini-Series)": ("Chernobyl", 2019)}
TAGGED |= {title: (title, None) for title in ("Cosmos (TV)", "Heat (1995) (Director's Cut)", "(1984) (film)")}


@pytest.mark.parametrize(("written", "expected"), TAGGED.items())
def test_a_media_tag_beside_the_year_is_no_part_of_the_title(written, expected):
    assert usable_title(written, None) == usable_title(written, expected[1]) == expected


NATURAL = {"Matrix, The": "The Matrix", "Avventura, L'": "L'Avventura", "Avventura, L’": "L’Avventura"}
NATURAL |= {"Olvidados, Los": "Los Olvidados", "Good, the Bad and the Ugly, The": "The Good, the Bad and the Ugly"}
NATURAL |= {"Associate, The (L'Associe)": "The Associate (L'Associe)"}
NATURAL |= {"Associate, The(L'Associe)": "The Associate(L'Associe)"}
NATURAL |= {title: title for title in ("Faust, I", "Crazy, Stupid, Love", "Sing, the", ", The", "Splash, Theo")}
NATURAL["Escape from New Orleans, LA"] = "Escape from New Orleans, LA"


@pytest.mark.parametrize(("title", "expected"), NATURAL.items())
def test_an_article_behind_the_title_comes_first(title, expected):
    assert natural(title) == natural(expected) == expected
    assert usable_title(title, None) == (expected, None)
    assert usable_title(f"{title} (1960)", None) == usable_title(f"{title}(1960)", "NA") == (expected, 1960)


def test_a_title_may_have_a_thousand_characters():
    assert usable_title("x" * LONGEST_TITLE, None) == ("x" * LONGEST_TITLE, None)
    for title in ("x" * (LONGEST_TITLE + 1), "Up" + " (2009)" * 8_000):
        with pytest.raises(ValueError, match="a title of more than 1,000 characters"):
            usable_title(title, None)


@pytest.mark.parametrize(
    "text", ["a" + "\u0315" * 200_000 + "\u0327" * 200_000, "\u0301\u0323" * 200_000, "a\u0301 " * 10**5]
)
def test_runs_of_marks_take_linear_time(text):
    """Sorted as one run, as `unicodedata` does, the marks would take minutes."""
    assert len(fold(text)) <= len(text) and len(normalise.__wrapped__(text)) <= len(text)


@pytest.mark.parametrize("function", [fold, normalise])
def test_long_texts_do_not_stay_in_memory(function):
    """Each request of 1 MB that named an unknown title stayed in the cache of titles."""
    text = "x" * 1_000_000
    before = sys.getrefcount(text)
    function(text)
    assert sys.getrefcount(text) == before
