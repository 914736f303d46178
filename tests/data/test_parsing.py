import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.data.parsing import format_list, parse_line, parse_list
from convrec.data.sources.synthetic import embedded_catalog
from convrec.demonstrations.answers import parse_answer
from tests.rows import make_items

CATALOG = Catalog(
    make_items(
        "Heat (1995) | Dune (2021) | 2001: A Space Odyssey (1968) | Up (2009) | 3:10 to Yuma (2007) | "
        "Mission: Impossible (1996) | Crazy, Stupid, Love (2011) | Love, Simon (2018) | WALL·E (2008) | "
        "The Good, the Bad and the Ugly (1966) | '71 (2014) | [Rec]² (2007) | E.T. the Extra-Terrestrial (1982) | "
        "Solaris | Today (1930)"
    )
)
STRANGER = Catalog([Item("A title that no other text has", 1901)])
REAL_TITLES = [*map(str, embedded_catalog().items)]
REAL_TITLES += ["Fear Street: Part One - 1994 (2021)", "[Rec]² (2009)", "'71 (2014)", "300: Rise of an Empire (2014)"]
REAL_TITLES += ["À la recherche du mari de ma femme (2016)", "Birdman or (The Unexpected Virtue of Ignorance) (2014)"]
REAL_TITLES += ["Léon: The Professional (1994)", "10,000 BC (2008)", "2012 (2009)", "50/50 (2011)", "Face/Off (1997)"]
REAL_TITLES += ["(500) Days of Summer (2009)", "B*A*P*S (1997)", "M*A*S*H (1970)"]
REAL_TITLES += ["Sophie Scholl – The Final Days (2005)", "P.O.V. - A Cursed Film (2012)"]
REAL_TITLES += ["*batteries not included (1987)", "Who's Afraid of Virginia Woolf? (1966)", "9 (2009)", "M (1931)"]
REAL_TITLES += ["Dr. Strangelove or: How I Learned to Stop Worrying and Love the Bomb (1964)"]
REAL_TITLES += ["千と千尋の神隠し (2001)"]


HEAT_OF_1995 = ["Heat (1995)", "**12. Heat (1995)**", "- “Heat” (1995) - a classic", '• "Heat" [1995]: cops, robbers']
HEAT_OF_1995 += ["Heat (1986) (1995)", "Heat (US, 1995)", "1. Heat (1995-present) - still on"]
HEAT_OF_1995 += ["Heat (1995-1999) (TV Series)", "Heat (TV Series 1995– )", "(1995) Heat", "Heat 1995"]
HEAT_OF_1995 += ["[Heat](https://example.org/heat) (1995)", "Heat: 1995"]
HEAT = ["#3. Heat", "Heat (film)", "Heat - 8.3/10", "Heat - Al Pacino hunts Robert De Niro", "1️⃣ Heat", "1\\. Heat"]
HEAT += ["2. Title: Heat", "Heat: a crime film with a robbery", "Heat | Michael Mann | crime"]
UNKNOWN = ["#3 Heat", "Heet (Director's Cut)", "Heat 1999", "Mission: Impossible - Fallout", "Sure, here is a list"]
UNKNOWN += ["Up 2049", "Solaris: 2049"]


@pytest.mark.parametrize(
    ("line", "title", "year", "known"),
    [
        *((line, "Heat", 1995, True) for line in HEAT_OF_1995),
        *((line, "Heat", None, True) for line in HEAT),
        *((line, line, None, False) for line in UNKNOWN),
        ("Heat (1999)", "Heat", 1999, False),
        ("Hitze aka Heat (1996)", "Hitze aka Heat", 1996, False),
        ("Mission: Impossible - Tom Cruise hangs from a wire", "Mission: Impossible", None, True),
        ("3. ***Up*** (2009) - you will cry", "Up", 2009, True),
        ("Up — an old man, a boy, a house", "Up", None, True),
        ("4. 2001: A Space Odyssey (1968)", "2001: A Space Odyssey", 1968, True),
        ("5. Solaris 2049", "Solaris 2049", None, False),
        ("Solaris (2049)", "Solaris", 2049, True),
        ("Primer (a story about time, told backwards)", "Primer", None, False),
        ("Primer (a story about time, told backwards) (2004)", "Primer", 2004, False),
    ],
)
def test_one_line_of_a_teacher(line, title, year, known):
    entry = parse_line(line, CATALOG, reading="lenient")
    assert entry is not None
    assert (entry.title, entry.year, entry.index is not None) == (title, year, known)


@pytest.mark.parametrize(
    ("line", "title", "part"),
    [
        ("Heat (Director's Cut)", "Heat (Director's Cut)", "Heat"),
        ("Heat by Michael Mann (1995)", "Heat by Michael Mann", "Heat"),
        ("3. Hitze (Heat) (1995)", "Hitze (Heat)", "Heat"),
        ("Heat: The Reckoning (1997)", "Heat: The Reckoning", "Heat"),
    ],
)
def test_a_teachers_title_that_is_known_in_part_stays_whole(line, title, part):
    entry = parse_line(line, CATALOG, reading="lenient")
    assert entry is not None and (entry.title, entry.part, entry.index) == (title, part, None)


@pytest.mark.parametrize("line", ["", "   ", "---", "1.", "12)", "- 9.", "**9.**", "***", "\t•\t", "```"])
@pytest.mark.parametrize("reading", ["strict", "lenient"])
def test_a_line_without_a_title_names_nothing(line, reading):
    assert parse_line(line, Catalog([*CATALOG.items, Item("9", 2009), Item("1", 2013)]), reading=reading) is None


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        (
            "Great! Here are 3 films for you:\n\n1. Heat\n   - A tense film about a robbery.\n2. Primer (2004)\n"
            "3. Up\n\nUser: thanks\nI hope that you enjoy these!",
            ["Heat", "Primer", "Up"],
        ),
        ('["Heat (1995)", "Up (2009)", "Primer (2004)"]', ["Heat", "Up", "Primer"]),
        ("Sure! Here are some films: Heat (1995), Primer (2004), and Up (2009).", ["Heat", "Primer", "Up"]),
        ("The Good, the Bad and the Ugly", ["The Good, the Bad and the Ugly"]),
        ("Heat is about a cop, a thief, and a city that sleeps.", []),
        ("```\nHeat\nUp\n```", ["Heat", "Up"]),
        ("**Crime:**\n- Heat\n- Primer\n**Family:**\n- Up", ["Heat", "Primer", "Up"]),
        ('{"recommendations": [{"title": "Heat", "year": 1995}, {"title": "Primer"}]}', ["Heat", "Primer"]),
        ('```json\n{\n  "movies": ["Heat", "Up"]\n}\n```\nEnjoy!', ["Heat", "Up"]),
        ('{"title": "Heat", "year": 1995}\n{"title": "Up"}', ["Heat", "Up"]),
        ("| # | Title | Year |\n|---|---|---|\n| 1 | Heat | 1995 |\n| 2 | Primer (2004) | x |", ["Heat", "Primer"]),
        ("<think>\n1. Dune\n2. Up\n</think>\n1. Heat\n2. Primer", ["Heat", "Primer"]),
        ("<ol><li>Heat (1995)</li><li>Up</li></ol>", ["Heat", "Up"]),
        ("1. Heat (1995) 2. Up (2009) 3. Primer (2004)", ["Heat", "Up", "Primer"]),
        ("1. Crime\n   - Heat (1995)\n   - Primer (2004)", ["Heat", "Primer"]),
        ("1. Heat\n   Director: Michael Mann\n   Genre: crime\n2. Up", ["Heat", "Up"]),
        ("Because you liked Dune (2021), and Up (2009), I recommend these\n1. Heat\n2. Primer", ["Heat", "Primer"]),
        ("User: I liked Dune\nAssistant:\n1. Heat\n2. Up", ["Heat", "Up"]),
        ("What would you like to watch (today)?", []),
        ("Today: what would you like to watch?", []),
        ('[{"song": "Heat", "artist": "Mann"}, {"artist": "Docter", "name": "Up"}]', ["Heat", "Up"]),
        ('{"name": "For you", "films": [{"Film": "Heat", "release_date": "1995-12-15"}]}', ["Heat"]),
        ('{"title": "Heat", "director": {"name": "Michael Mann"}, "genres": ["crime", "Up"]}', ["Heat"]),
    ],
)
def test_the_list_within_an_answer(text, titles):
    assert [entry.title for entry in parse_answer(text, CATALOG)] == titles


def test_whether_the_catalog_has_a_film_does_not_move_the_ranks_behind_it():
    lines = ["Heat", "{} (which follows a group of people who try to live in a very small house)", "Up (2009)"]
    text = "\n".join(f"{rank}. {line.format('Primer')}" for rank, line in enumerate(lines, start=1))
    for catalog in (CATALOG, Catalog([*CATALOG.items, Item("Primer", 2004)])):
        found = parse_answer(text, catalog)
        assert [entry.part or entry.title for entry in found] == ["Heat", "Primer", "Up"]


PIECES = ["Heat", "(1995)", "1.", "- ", ",", " and ", '"', "\n", ":", "**", "Here are "]


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
@example('"' * 5_000)
@example("like " * 1_000)
@example("1. " * 2_000)
@example("(" * 4_000 + "1999" + ")" * 400)
@example("\ud800 (1999)\x00\u2028, \u0661\u0669\u0669\u0669")
def test_any_text_is_read_line_by_line(text):
    lines = text.split("\n")
    assert len(parse_list(text, CATALOG)) == len(lines) - (not lines[-1].strip())
    entries = (parse_line(line, CATALOG, reading="lenient") for line in lines)
    assert all(entry is None or entry.title for entry in entries)
    assert all(entry.title.strip() for entry in parse_answer(text, CATALOG))


def test_a_very_long_line_is_not_read():
    assert not parse_answer("like, " * 1_000_000, CATALOG)


FORMS = ("{}", "{n}. {}", "{n}) {}", "- {}", "* **{}**", "{n}. “{}”", '{n}. "{}"', "**{n}. {}**")
LISTS = st.lists(st.sampled_from(REAL_TITLES), min_size=1, max_size=20, unique=True)


@given(LISTS, st.sampled_from(FORMS), st.booleans())
@settings(max_examples=60)
def test_a_formatted_list_parses_to_itself_whatever_the_catalog(titles, form, in_catalog):
    parts = [title.rsplit(" (", 1) for title in titles]
    catalog = Catalog([Item(title, int(year[:-1])) for title, year in parts]) if in_catalog else STRANGER
    text = format_list([form.format(title, n=number) for number, title in enumerate(titles, start=1)])
    answer = parse_answer(text, catalog)
    assert [f"{entry.title} ({entry.year})" for entry in answer] == titles
    assert [entry.index is not None for entry in answer] == [in_catalog] * len(titles)
    assert parse_list(text, catalog) == answer


TITLES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1, max_size=40).map(
    lambda text: " ".join(text.split())
)


@given(st.lists(TITLES.filter(bool), min_size=1, max_size=20, unique_by=lambda title: title.casefold()))
def test_any_list_of_a_catalog_parses_to_itself(titles):
    catalog = Catalog([Item(title, 1999) for title in titles])
    text = format_list([str(item) for item in catalog.items])
    assert [entry.index for entry in parse_answer(text, catalog)] == list(range(len(titles)))
    assert [entry.index for entry in parse_list(text, catalog) if entry] == list(range(len(titles)))


GAMES = Catalog(
    make_items(
        "7 Wonders | Catan | Catan: Seafarers | 1. FC | Uno! | No. 5 | 1830 | Go | Chess = Schach = 3. Schach | "
        "Risk (1957) = Risiko"
    )
)


@pytest.mark.parametrize(
    ("line", "title", "year", "known"),
    [
        ("- **Catan: Seafarers** - an expansion", "Catan: Seafarers", None, "Catan: Seafarers"),
        ("“Uno!”", "Uno!", None, "Uno!"),
        ("6. No. 4: Go", "Go", None, "Go"),
        ("1830 (1986)", "1830", 1986, "1830"),
        ("5. schach (1995)", "schach", 1995, "Chess"),
        ("Risiko (1959)", "Risiko", 1959, "Risk"),
        ("Risiko (1999)", "Risiko", 1999, None),
        ("Wonders", "Wonders", None, None),
    ],
)
def test_one_line_of_a_catalog_without_years(line, title, year, known):
    entry = parse_line(line, GAMES, reading="lenient")
    assert entry is not None and (entry.title, entry.year) == (title, year)
    assert (None if entry.index is None else GAMES.items[entry.index].title) == known


BOOKS = Catalog(
    [
        Item("Dune", None, {"author": "Frank Herbert", "genre": "science fiction"}),
        Item("Emma", None, {"author": "Jane Austen"}),
        Item("V.", None, {"author": "Thomas Pynchon"}),
        Item("Hello", 2015, {"artist": "Adele"}),
        Item("Hello", 1983, {"artist": "Lionel Richie, The Commodores"}),
        Item("1984", None, {"author": "George Orwell"}),
        Item("9", 2009),
    ]
)


CREDITED = {"Dune - Frank Herbert": "Dune", "“Dune”: Frank Herbert": "Dune", "Dune by frank herbert (1965)": "Dune"}
CREDITED |= {"- Frank Herbert - Dune": "Dune", "2. V. by Thomas Pynchon": "V.", "1984 - George Orwell": "1984"}
CREDITED |= {"Adele - Hello": "Hello (2015)", "Hello (2015) - Adele": "Hello (2015)", "Dune - Jane Austen": None}


@pytest.mark.parametrize(("line", "item"), CREDITED.items())
def test_a_credit_that_the_metadata_has_confirms_a_title(line, item):
    entry = parse_line(line, BOOKS, reading="lenient")
    assert entry is not None
    assert (None if entry.index is None else str(BOOKS.items[entry.index])) == item
    assert parse_line(line, BOOKS) is None or parse_line(line, BOOKS).index is None or "(2015) -" in line


def test_a_credit_in_json_decides_between_items_of_one_title():
    answer = parse_answer('[{"song": "Hello", "artist": "Adele"}, {"name": "Emma", "author": "Unknown"}]', BOOKS)
    assert [str(BOOKS.items[entry.index]) for entry in answer] == ["Hello (2015)", "Emma"]
