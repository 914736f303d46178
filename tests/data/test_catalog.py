import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.titles import fold
from convrec.project.errors import InputError
from tests.rows import make_items


def test_find_takes_the_nearest_year_within_the_tolerance(catalog):
    assert catalog.items[catalog.find("dune", 2019)].year == 2021
    assert catalog.items[catalog.find("DUNE", 1985)].year == 1984
    assert catalog.find("Dune", 2000) is None
    assert catalog.find("Dune", None) is None, "ambiguous without a year"
    assert catalog.items[catalog.find("  uP ", None)].year == 2009


def test_a_catalog_refuses_duplicates():
    with pytest.raises(InputError, match="stands twice"):
        Catalog([Item("Heat", 1995), Item("HEAT", 1995)])


def test_unusable_rows_are_left_out_with_their_reason(quarantine):
    rows = [{"title": "Heat", "year": 1995}, {"title": "heat ", "year": "1995"}, {"title": "Up", "year": ""}]
    rows += [{"title": "", "year": 2000}, {"title": "Old", "year": 12}]
    rows += [{"title": "Odd", "year": "MCM"}, {"title": {"en": "Heat"}}, {"title": "A\0B"}, {"title": "Half \ud800"}]
    rows += [{"title": "x" * 1001}, {"title": "Dune", "aliases": "x" * 1001}]
    films, places = build_catalog(rows, (), quarantine)
    assert films.items == (Item("Heat", 1995), Item("Up", None)) and places == [0, 0, 1, *[None] * 8]
    reasons = [(row["row"], row["reason"]) for row in quarantine.rows]
    assert reasons == [
        ("2", "duplicate item"),
        ("4", "no title"),
        ("5", "year is not from 1000 to 2100"),
        ("6", "year is no number"),
        ("7", "title is no text"),
        ("8", "NUL or half a character"),
        ("9", "NUL or half a character"),
        ("10", "a title of more than 1,000 characters"),
        ("11", "an alias of more than 1,000 characters"),
    ]
    assert quarantine.shares() == {"catalog": 9 / 11}


def test_first_unseen_keeps_the_order_and_leaves_out_every_film_of_a_seen_title(catalog):
    order = range(len(catalog) - 1, -1, -1)
    expected = [item for item in reversed(catalog.items) if item.title != "Dune"]
    assert catalog.first_unseen(order, ["  DUNE"], 2) == expected[:2]
    assert catalog.first_unseen(order, [], 10**6) == list(reversed(catalog.items))


def test_spellings_are_read_once_and_only_for_a_title_that_no_item_has(monkeypatch):
    read = []
    monkeypatch.setattr("convrec.data.catalog.spellings", lambda title: read.append(title) or {title})
    films = Catalog([Item("Heat", 1995, aliases=("Fuego",)), Item("Up", 2009)])
    assert films.find("HEAT", 1994) == 0 and films.readings("Fuego", None) == [0] and films.readings("up", 2010) == [1]
    assert films.index_of_line("Up (2009)") == 1 and read == []
    assert films.readings("Jaws", None) == films.readings("Jaws", 1975) == []
    assert sorted(read) == ["Fuego", "Heat", "Jaws", "Jaws", "Up"]


def test_a_year_confirms_what_a_spelling_alone_does_not():
    films = Catalog(make_items("Predator (1987) | Spider-Man (2002) | Halloween (1978) | Halloween (2018)"))
    assert films.readings("The Predator", None) == [] and films.readings("The Predator", 1987) == [0]
    assert films.readings("The Predator", 1988) == []
    assert films.readings("Spiderman", None) == films.readings("Spider Man", None) == [1]
    assert films.readings("halloween!", None) == [2, 3] and films.readings("halloween!", 2017) == [3]
    assert films.readings("Halloween", 2000) == []


DISTINCT = [
    ("C++ Primer", "C# Primer"),
    ("Help!", "Help"),
    ("दाल", "दिल"),
    ("Vol. IV", "Volume 4"),
    ("Amélie", "Amelie"),
]


@pytest.mark.parametrize("year", [None, 2010])
@pytest.mark.parametrize("titles", DISTINCT)
def test_titles_that_differ_are_items_of_their_own(titles, year, quarantine):
    films, places = build_catalog([{"title": title, "year": year} for title in titles], (), quarantine)
    assert films.items == tuple(Item(title, year) for title in titles) and places == [0, 1] and not quarantine.rows
    for index, title in enumerate(titles):
        assert films.find(title.upper(), year) == index and films.readings(title, year) == [index]
        assert films.indices_of_title(title) == [index]


def test_a_spelling_that_fits_several_items_names_none():
    films = Catalog([Item("Help!", 1965), Item("Help", 1965), Item("Emma", 1996), Item("Emma.", 2020)])
    assert films.readings("Help...", 1965) == films.readings("Help...", None) == films.readings("emma!", None) == []
    assert films.readings("emma!", 1997) == [2] and films.readings("emma!", 2021) == [3], "the year tells"
    assert films.readings("HELP", None) == films.readings("help", 1966) == [1], "the exact title tells"


def test_an_alias_that_fits_several_items_names_none():
    songs = Catalog([Item("Hello - Adele", 2015, aliases=("Hello",)), Item("Hello - Lionel", 2015, aliases=("Hello",))])
    assert songs.find("Hello", 2015) is None and songs.find("Hello", None) is None
    assert songs.readings("hello", 2015) == [] and songs.readings("hello", None) == [0, 1]
    assert songs.indices_of_title("Hello") == [0, 1]


def test_rows_of_one_id_are_one_item_and_rows_of_several_are_not(quarantine):
    rows = [{"id": 7, "title": "Amelie", "year": 2001}, {"id": "7", "title": "Amélie", "year": 2001}]
    rows += [{"id": 8.0, "title": "Hello", "year": 2015}, {"id": "9", "title": "hello", "year": 2015}]
    rows += [{"title": "Hello", "year": 2016}, {"id": True, "title": "Up"}]
    films, places = build_catalog(rows, (), quarantine)
    assert [item.id for item in films.items] == ["7", "8", "9", "hello_2016"] and places == [0, 0, 1, 2, 3, None]
    assert films.items[0].aliases == ("Amélie",) and films.index_of_id("9") == 2 and films.index_of_id("0") is None
    assert [(row["row"], row["reason"]) for row in quarantine.rows] == [
        ("2", "duplicate item"),
        ("6", "id is neither text nor an integer"),
    ]
    assert films.find("Hello", 2015) is None and films.entry_of_line("Hello (2015)") is None
    assert films.readings("Hello", 2015) == [] and films.find("Hello", 2016) == 3
    message = r"Hello \(2015\) \(ids '8' and '9'\); set data.line_column = 'id' .* as in `Hello - 8 \(2015\)`, or give"
    with pytest.raises(InputError, match=message):
        films.check_lines()
    songs, _ = build_catalog(rows[2:5], (), Quarantine(), line_column="id")
    songs.check_lines()
    assert [str(song) for song in songs.items] == ["Hello - 8 (2015)", "hello - 9 (2015)", "Hello (2016)"]
    songs, _ = build_catalog([row | {"by": row.get("id"), "of": "x"} for row in rows[2:5]], ("of", "by"), Quarantine())
    with pytest.raises(InputError, match=r"set data.line_column = 'by' \(it tells them apart\), as in `Hello - 8.0 "):
        songs.check_lines()


def test_a_book_of_a_series_is_found_by_its_title_alone():
    rows = [{"title": "The Hunger Games (The Hunger Games, #1)", "year": 2008}, {"title": "Emma (Austen #0.5-2)"}]
    rows += [{"title": "Emma", "year": 1815}, {"title": "Dune (Dune, #1)"}, {"title": "Dune (Saga #2; Dune, #7)"}]
    rows += [{"title": "We're #1 (Ode)"}]
    books, _ = build_catalog(rows, (), Quarantine())
    assert [book.aliases for book in books.items] == [("The Hunger Games",), (), (), ("Dune",), ("Dune",), ()]
    assert books.find("the hunger games", 2008) == 0 == books.find("The Hunger Games", None)
    assert books.find("Emma", 1815) == 2 and books.find("Dune", None) is None
    assert books.indices_of_title("Dune") == [3, 4]


def test_a_column_can_be_part_of_the_line(quarantine):
    rows = [{"title": "Hello (2015)", "artist": "Adele"}, {"title": "Hello", "year": 1984, "artist": ["Lionel Richie"]}]
    rows += [{"title": "Hello - Adele", "year": 2015, "artist": "Adele"}, {"title": "Intro", "artist": None}]
    songs, places = build_catalog(rows, ("artist",), quarantine, line_column="artist")
    assert [str(item) for item in songs.items] == ["Hello - Adele (2015)", "Hello - Lionel Richie (1984)", "Intro"]
    assert places == [0, 1, 0, 2] and [row["reason"] for row in quarantine.rows] == ["duplicate item"]
    assert songs.find("Hello", 2014) == 0 and songs.find("Hello", 1984) == 1 and songs.find("Hello", None) is None
    again, _ = build_catalog(songs.to_frame().to_dict("records"), (), Quarantine(), line_column="artist")
    assert again.items == songs.items


def test_an_id_says_title_and_year():
    assert Item("The  Matrix", 1999).id == Item("THE MATRIX", 1999).id == "the-matrix_1999"
    assert Item("Chess", None).id == "chess" and Item("Chess 1999", None).id == "chess-1999"
    assert Item("WALL-E", 2008).id == "wall%2de_2008" and Item("100%_", None).id == "100%25%5f"
    assert Item("千と千尋の神隠し", 2001).id == "千と千尋の神隠し_2001"


def test_a_title_with_its_article_behind_is_the_same_item():
    rows = [{"title": "The Matrix", "aliases": "Matrix, La|Matrix, The"}, {"title": "Matrix, The"}]
    films, places = build_catalog(rows, (), Quarantine())
    assert places == [0, 0] and films.items[0].aliases == ("La Matrix",)


ANY_TITLE = st.text(st.sampled_from("aB -_%2d5f19\u0301é!"), min_size=1, max_size=8)


@given(ANY_TITLE, ANY_TITLE, st.sampled_from([None, 1999]), st.sampled_from([None, 1999, 2000]))
def test_ids_are_equal_where_folded_title_and_year_are(one, other, year, other_year):
    equal = (fold(one), year) == (fold(other), other_year)
    assert (Item(one, year).id == Item(other, other_year).id) == equal


def test_other_titles_of_a_row_are_aliases(quarantine):
    rows = [{"title": "Amelie", "year": 2001, "aliases": "Le fabuleux destin|AMELIE"}, {"title": "Emma", "year": 1996}]
    rows += [{"title": "AMELIE", "year": "2001", "aliases": ["Amélie", "Le Fabuleux  Destin"]}]
    films, places = build_catalog(rows, (), quarantine)
    assert [str(item) for item in films.items] == ["Amelie (2001)", "Emma (1996)"] and places == [0, 1, 0]
    assert [row["reason"] for row in quarantine.rows] == ["duplicate item"]
    assert films.items[0].aliases == ("Le fabuleux destin", "Amélie") and films.items[1].aliases == ()
    assert films.find("amélie", 2001) == films.find("Le Fabuleux Destin", None) == 0
    assert films.indices_of_titles(["AMÉLIE", "emma"]) == {0, 1}


def test_items_without_a_year_are_found_by_their_title():
    games = Catalog([Item("Chess", None), Item("Dune", None), Item("Dune", 2021), Item("Go", 1000)])
    assert [str(item) for item in games.items] == ["Chess", "Dune", "Dune (2021)", "Go (1000)"]
    assert games.find("chess", None) == games.find("Chess", 1990) == 0
    assert games.find("Dune", None) == 1 and games.find("Dune", 2020) == 2 and games.find("Dune", 1984) == 1
    assert games.readings("chess!", None) == games.readings("Chess!", 1990) == [0]
    assert games.readings("Dune!", 2020) == [2] and games.readings("Dune!", None) == [1, 2]


def test_what_two_threads_make_of_a_catalog_at_once_is_the_same():
    catalog = Catalog([Item("Heat", 1995)])
    others: list[object] = []

    def make(own: Catalog) -> object:
        if not others:  # another thread asks while this one makes
            others.append(None)
            others[0] = own.once(make)
        return object()

    assert catalog.once(make) is others[0] is catalog.once(make)
