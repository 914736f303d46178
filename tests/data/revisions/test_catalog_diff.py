import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog
from convrec.data.revisions.catalog_diff import diff_catalogs
from convrec.project.text import WIDTH
from tests.data.revisions.tables import film

HEAT, UP, SEVEN = film("Heat", 1995), film("Up", 2009), film("Seven", 1995)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            [HEAT, film("Zodiac", 2007), film("Alien", 1979)],
            [UP, HEAT, film("Dune")],
            {"added": ["Dune", "Up (2009)"], "removed": ["Alien (1979)", "Zodiac (2007)"]},
        ),
        (
            [film("Matrix, The", 1999)],
            [film("The Matrix", 1999)],
            {"renamed": ["Matrix, The (1999) -> The Matrix (1999)"]},
        ),
        ([UP], [film("Up", 2009, item_id="up!_2009")], {}),
        (
            [film("Heat", 1994), film("Up"), film("Dune", 1984)],
            [HEAT, UP, film("Dune", 2021)],
            {
                "added": ["Dune (2021)"],
                "removed": ["Dune (1984)"],
                "renamed": ["Heat (1994) -> Heat (1995)", "Up -> Up (2009)"],
            },
        ),
        (
            [film("Leon", 1995, ["THE PROFESSIONAL"])],
            [film("The Professional", None, ["THE PROFESSIONAL"])],
            {"renamed": ["Leon (1995) -> The Professional"]},
        ),
        (
            [SEVEN, film("Se7en", 1995), film("Se7en", 1996)],
            [film("Seven", 1995, ["Se7en"])],
            {
                "removed": ["Se7en (1996)"],
                "merged": ["Se7en (1995) -> Seven (1995)"],
                "changed": ['Seven (1995): alias "Se7en" added'],
            },
        ),
        (
            [film("Heat", 1995, ["Hitze"], genres="crime", plot="A heist.", keywords="", cast="De Niro")],
            [film("Heat", 1995, ["Calor"], cast="De Niro", genres="crime, drama", director="Mann")],
            {
                "changed": [
                    'Heat (1995): director none -> "Mann"; genres "crime" -> "crime, drama"; plot "A heist." -> none; '
                    'alias "Calor" added; alias "Hitze" removed'
                ]
            },
        ),
    ],
)
def test_items_are_added_removed_renamed_merged_or_changed(old, new, expected):
    found = diff_catalogs(Catalog(old), Catalog(new))
    names = ("added", "removed", "renamed", "merged", "changed")
    assert {name: texts for name in names if (texts := getattr(found, name))} == expected
    assert (found.before, found.after, found.is_empty) == (len(old), len(new), not expected)


_names = st.sampled_from(["Heat", "HEAT", "Heat, The", "The Heat", "Up", "Dune", "Fire"])
_some_items = st.builds(
    lambda title, year, aliases, genres: film(title, year, aliases, genres=genres),
    _names,
    st.sampled_from([None, 1990, 1991, 1992, 1993, 1995]),
    st.lists(_names, max_size=2, unique=True),
    st.sampled_from(["crime", "drama"]),
)
_catalogs = st.lists(_some_items, min_size=1, max_size=8, unique_by=lambda item: item.id).map(Catalog)


@settings(max_examples=40)
@given(_catalogs, _catalogs)
def test_every_item_is_in_one_category(old, new):
    found = diff_catalogs(old, new)
    turned = diff_catalogs(Catalog(old.items[::-1]), Catalog(new.items[::-1]))
    assert turned == found, "the order of rows does not matter"
    kept = len(new) - len(found.added)
    assert kept == len(old) - len(found.removed) - len(found.merged)
    assert found.unchanged + max(len(found.renamed), len(found.changed)) <= kept
    assert kept <= found.unchanged + len(found.renamed) + len(found.changed)


def test_text_lists_up_to_the_limit_within_the_width():
    old = Catalog([film("Matrix, The", 1999), film("Heat", 1995, plot="x" * 300)])
    long = [film("千と千尋の神隠し" * 20, 2001), film("Sly\x1b[31m\u202egnis", 2002)]
    films = [film(f"Film {index}", 2000) for index in range(10, 48)]
    new = Catalog([film("The Matrix", 1999), film("Heat", 1995, plot="y" * 300), *long, *films])
    lines = diff_catalogs(old, new).to_text(limit=2).split("\n")
    assert lines[:5] == [
        "Catalog: 2 -> 42 items: 40 added, 0 removed, 1 renamed, 0 merged, 1 changed, 0 unchanged",
        "  added",
        "    Film 10 (2000)",
        "    Film 11 (2000)",
        "    ... and 38 more",
    ]
    assert lines[5:8] == ["  renamed", "    Matrix, The (1999) -> The Matrix (1999)", "  changed"]
    everything = diff_catalogs(old, new).to_text(limit=99)
    assert max(len(line) + sum(ord(c) > 0x2E80 for c in line) for line in everything.split("\n")) <= WIDTH
    assert not {"\x1b", "\u202e"} & set(everything)
