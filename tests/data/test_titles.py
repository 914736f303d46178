import sys
from decimal import Decimal

import pytest

from convrec.data.titles import LONGEST_TITLE, fold, natural, normalise, title_and_year, usable_id, usable_title


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("The Matrix", "Matrix, The", True),
        ("Amélie", "AMELIE", True),
        ("Fast & Furious 6", "Fast and Furious 6", True),
        ("The Godfather: Part II", "The Godfather Part 2", True),
        ("Ocean's Eleven", "Ocean’s 11", True),
        ("Star Wars: Episode IV – A New Hope", "Star Wars Episode IV: A New Hope", True),
        ("Romeo++Juliet", "Romeo Juliet", True),
        ("Ωμέγα", "ωμεγα", True),
        ("L'Avventura", "avventura, l’", True),
        ("Los Olvidados", "OLVIDADOS, LOS", True),
        ("น้ำ", "น้\u0e4d\u0e32", True),
        ("C+", "C++", False),
        ("ガラスの城", "カラスの城", False),
        ("Malcolm X", "Malcolm", False),
        ("Nine", "9", False),
    ],
)
def test_spellings_of_one_title_agree_and_other_titles_do_not(one, other, agree):
    assert (normalise(one) == normalise(other)) == agree


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("c-1", "c-1"),
        (17, "17"),
        (0, "0"),
        (17.0, "17"),
        (2.0**53 - 1, "9007199254740991"),
        (Decimal("17.00"), "17"),
        (Decimal(10**37 + 1), str(10**37 + 1)),
        *((value, "") for value in (Decimal("nan"), None, "", "  ", float("nan"), "NULL", r"\N")),
    ],
)
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


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Stranger Things (2016-present)", ("Stranger Things", 2016)),
        ("Stranger Things (TV Series 2016– )", ("Stranger Things", 2016)),
        ("Black Mirror (2011-2019) (TV Series)", ("Black Mirror", 2011)),
        ("Cosmos (1980)(TV)", ("Cosmos", 1980)),
        ("Chernobyl (2019) (TV Mini-Series)", ("Chernobyl", 2019)),
        ("Up (2009) [film]", ("Up", 2009)),
        ("Cosmos (TV)", ("Cosmos (TV)", None)),
        ("Heat (1995) (Director's Cut)", ("Heat (1995) (Director's Cut)", None)),
        ("(1984) (film)", ("(1984) (film)", None)),
    ],
)
def test_a_media_tag_beside_the_year_is_no_part_of_the_title(written, expected):
    assert usable_title(written, None) == usable_title(written, expected[1]) == expected


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("Matrix, The", "The Matrix"),
        ("Avventura, L'", "L'Avventura"),
        ("Avventura, L’", "L’Avventura"),
        ("Olvidados, Los", "Los Olvidados"),
        ("Faust, I", "Faust, I"),
        ("Good, the Bad and the Ugly, The", "The Good, the Bad and the Ugly"),
        ("Associate, The (L'Associe)", "The Associate (L'Associe)"),
        ("Associate, The(L'Associe)", "The Associate(L'Associe)"),
        ("Crazy, Stupid, Love", "Crazy, Stupid, Love"),
        ("Escape from New Orleans, LA", "Escape from New Orleans, LA"),
        ("Sing, the", "Sing, the"),
        (", The", ", The"),
        ("Splash, Theo", "Splash, Theo"),
    ],
)
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
