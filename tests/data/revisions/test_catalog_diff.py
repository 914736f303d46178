from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog
from convrec.data.revisions.catalog_diff import diff_catalogs
from convrec.project.text import WIDTH
from tests.data.revisions.tables import film, ids


def _renamed(found):
    return [(pair.old.item_id, pair.new.item_id, pair.reason) for pair in found.renamed]


HEAT, UP, SEVEN = film("Heat", 1995), film("Up", 2009), film("Seven", 1995)
SE7EN = film("Se7en", 1995)


@pytest.mark.parametrize(
    ("old", "new", "added", "removed", "renamed"),
    [
        pytest.param(
            [HEAT, film("Zodiac", 2007), film("Alien", 1979)],
            [UP, HEAT, film("Dune")],
            ["dune", "up_2009"],
            ["alien_1979", "zodiac_2007"],
            [],
            id="lists are sorted by id",
        ),
        pytest.param(
            [film("Matrix, The", 1999)],
            [film("The Matrix", 1999)],
            [],
            [],
            [("the-matrix_1999", "the-matrix_1999", "spelling")],
            id="one id, another title",
        ),
        pytest.param([UP], [film("Up", 2009, item_id="up!_2009")], [], [], [], id="only another id"),
        pytest.param(
            [film("Heat", 1994), film("Up"), film("Dune", 1984)],
            [HEAT, UP, film("Dune", 2021)],
            ["dune_2021"],
            ["dune_1984"],
            [("heat_1994", "heat_1995", "year"), ("up", "up_2009", "year")],
            id="a corrected year",
        ),
        pytest.param(
            [SEVEN, SE7EN, film("Se7en", 1996)],
            [film("Seven", 1995, ["Se7en"])],
            [],
            ["se7en_1996"],
            [("se7en_1995", "seven_1995", "merged")],
            id="a kept item takes one merged item",
        ),
        pytest.param(
            [HEAT, SEVEN],
            [film("Heat", 1996), film("Fire", 1996, ["Heat"]), film("Seven", 1995, ["Heat"])],
            ["fire_1996"],
            [],
            [("heat_1995", "heat_1996", "year")],
            id="title before alias, added before kept",
        ),
    ],
)
def test_items_are_added_removed_or_renamed(old, new, added, removed, renamed):
    found = diff_catalogs(Catalog(old), Catalog(new))
    assert (ids(found.added), ids(found.removed), _renamed(found)) == (added, removed, renamed)
    assert (found.before, found.after) == (len(old), len(new))


@pytest.mark.parametrize(("old_year", "new_year"), [(1995, 1995), (1995, 1997), (1995, None), (None, 1995)])
@pytest.mark.parametrize("side", ["old", "new"])
def test_an_item_whose_other_title_is_known_is_renamed(side, old_year, new_year):
    old = film("Leon", old_year, ["THE PROFESSIONAL"] if side == "old" else [])
    new = film("The Professional", new_year, ["Leon"] if side == "new" else [])
    found = diff_catalogs(Catalog([old]), Catalog([new]))
    assert [reason for *_, reason in _renamed(found)] == ["alias"]
    assert len(found.changed) == 1, "its aliases changed too"


def test_changed_metadata_names_field_old_and_new():
    old = Catalog([film("Heat", 1995, ["Hitze"], genres="crime", plot="A heist.", keywords="", cast="De Niro")])
    new = Catalog([film("Heat", 1995, ["Calor"], cast="De Niro", genres="crime, drama", director="Mann")])
    (change,) = diff_catalogs(old, new).changed
    assert change.fields == {
        "director": {"old": None, "new": "Mann"},
        "genres": {"old": "crime", "new": "crime, drama"},
        "plot": {"old": "A heist.", "new": None},
    }
    assert change.aliases == {"added": ["Calor"], "removed": ["Hitze"]}
    assert str(change) == (
        'Heat (1995): director none -> "Mann"; genres "crime" -> "crime, drama"; plot "A heist." -> none; '
        'alias "Calor" added; alias "Hitze" removed'
    )


_names = st.sampled_from(["Heat", "HEAT", "Heat, The", "The Heat", "Up", "Dune", "Fire"])
_years = st.sampled_from([None, 1990, 1991, 1992, 1993, 1995])
_some_items = st.builds(
    lambda title, year, aliases, genres: film(title, year, aliases, genres=genres),
    _names,
    _years,
    st.lists(_names, max_size=2, unique=True),
    st.sampled_from(["crime", "drama"]),
)
_catalogs = st.lists(_some_items, min_size=1, max_size=8, unique_by=lambda item: item.id).map(
    lambda rows: Catalog(rows)
)


@settings(max_examples=40)
@given(_catalogs, _catalogs)
def test_every_item_is_in_one_category(old, new):
    found = diff_catalogs(old, new)
    turned = diff_catalogs(Catalog(old.items[::-1]), Catalog(new.items[::-1]))
    assert turned == found, "the order of rows does not matter"
    merged = [pair for pair in found.renamed if pair.reason == "merged"]
    own = [pair for pair in found.renamed if pair.reason != "merged"]
    changed_only = {change.item.item_id for change in found.changed} - {pair.new.item_id for pair in own}
    assert len(new) == found.after == found.unchanged + len(own) + len(changed_only) + len(found.added)
    assert len(old) == found.before == found.unchanged + len(found.renamed) + len(changed_only) + len(found.removed)
    old_ids = Counter([pair.old.item_id for pair in found.renamed] + ids(found.removed))
    new_ids = Counter([pair.new.item_id for pair in own] + ids(found.added))
    assert max([*old_ids.values(), *new_ids.values(), *Counter(p.new.item_id for p in merged).values()], default=1) == 1


def test_text_lists_up_to_the_limit_within_the_width():
    old = Catalog([film("Matrix, The", 1999), film("Heat", 1995, plot="x" * 300)])
    long = [film("千と千尋の神隠し" * 20, 2001), film("Sly\x1b[31m\u202egnis", 2002)]
    films = [film(f"Film {index}", 2000) for index in range(10, 48)]
    new = Catalog([film("The Matrix", 1999), film("Heat", 1995, plot="y" * 300), *long, *films])
    text = diff_catalogs(old, new).to_text(limit=3)
    lines = text.split("\n")
    assert lines[0] == "Catalog: 2 -> 42 items: 40 added, 0 removed, 1 renamed, 1 changed, 0 unchanged"
    assert lines[1:6] == [
        "  added",
        "    Film 10 (2000)",
        "    Film 11 (2000)",
        "    Film 12 (2000)",
        "    ... and 37 more",
    ]
    assert lines[6:9] == ["  renamed", "    Matrix, The (1999) -> The Matrix (1999)", "  changed (plot 1)"]
    everything = diff_catalogs(old, new).to_text(limit=99)
    assert max(len(line) + sum(ord(c) > 0x2E80 for c in line) for line in everything.split("\n")) <= WIDTH
    assert not {"\x1b", "\u202e"} & set(everything)
