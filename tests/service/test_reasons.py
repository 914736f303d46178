import time

import pytest

from convrec.data.catalog import Catalog, Item
from convrec.data.mentions import Mentions
from convrec.data.wish_reader import WishReader
from convrec.service.reasons import Reasons, example_requests, facts_of, short_values, what_is_read

HEAT = Item("Heat", 1995, {"genres": "crime, drama", "keywords": "heist, detective", "director": "Michael Mann"})
ALI = Item("Ali", 2001, {"genres": "drama", "keywords": "sport", "director": "Michael Mann"})
ALIEN = Item("Alien", 1979, {"genres": "horror, sci-fi", "keywords": "space, monsters"})
PLAIN = Item("Casablanca", 1942, {"plot": "A cynical owner of a bar meets his former lover, and shelters her, at last"})
CATALOG = Catalog([HEAT, ALI, ALIEN, PLAIN])
REASONS = Reasons(CATALOG, Mentions(CATALOG))


@pytest.mark.parametrize(
    ("item", "text", "reasons"),
    [
        (ALI, "I loved Heat", ["Like Heat (1995): drama, director Michael Mann"]),
        (HEAT, "I loved Heat and Ali", ["Like Ali (2001): drama, director Michael Mann"]),
        (HEAT, "I loved Ali | more crime", ["You mentioned crime", "Like Ali (2001): drama, director Michael Mann"]),
        (HEAT, "Heists, please; no DRAMA", ["You mentioned drama, heist"]),
        (ALIEN, "a monster in outer space", ["You mentioned space, monsters"]),
        (ALIEN, "the space station, 70s", ["You mentioned space, the 1970s"]),
        (HEAT, "from the 1990s", ["You mentioned the 1990s"]),
        (ALI, "from the 00's", ["You mentioned the 2000s"]),
        (ALIEN, "spaceships, dramatic", []),
        (ALIEN, "I loved Heat", []),
        (PLAIN, "a bar, I loved Heat", []),
    ],
)
def test_reasons_name_what_is_shared(item, text, reasons):
    said = [{"role": "user", "content": part} for part in text.split(" | ")]
    assert REASONS.of([item], [{"role": "assistant", "content": "Alien? horror?"}, *said], {}) == [reasons]


def test_a_value_that_is_read_in_other_words_is_mentioned_and_one_that_is_refused_is_not():
    said = [{"role": "user", "content": "sport films, something scary, without spaceships and drama"}]
    wishes = WishReader(CATALOG).read(said)
    assert REASONS.of([ALIEN, ALI], said, {}, wishes) == [["You mentioned horror"], ["You mentioned sport"]]


def test_a_word_of_a_title_is_not_mentioned_and_what_most_items_share_says_nothing():
    fields = {"genres": "animation", "keywords": "toys", "language": "English", "actors": "Tom Hanks, Tim Allen"}
    story, big = Item("Toy Story", 1995, {**fields, "runtime": "81"}), Item("Big", 1988, {**fields, "runtime": "81"})
    catalog = Catalog([story, big, *(Item(f"Film {at}", None, {"language": "English"}) for at in range(30))])
    reasons = Reasons(catalog, Mentions(catalog))
    like = "Like Toy Story (1995): animation, toys, actors Tom Hanks, Tim Allen"
    for text, found in (("I loved Toy Story", [like]), ("Toy Story, with toys", ["You mentioned toys", like])):
        assert reasons.of([big], [{"role": "user", "content": text}], {}) == [found]
    assert facts_of(story) == "animation · Tom Hanks, Tim Allen · 81 min" and facts_of(catalog.items[-1]) == ""


def test_who_liked_an_item_is_said_of_that_item_first():
    said = [{"role": "user", "content": "I loved Heat"}]
    people = "Liked by 1,400 people who asked for something like this"
    assert REASONS.of([ALIEN, ALI], said, {CATALOG.items.index(ALI): 1400}) == [
        [],
        [people, "Like Heat (1995): drama, director Michael Mann"],
    ]


def test_a_long_conversation_takes_no_longer_than_its_last_words():
    """Each value of an item's metadata was looked for in the whole text."""
    text = "I loved Alien. " + "the crime " * 90_000 + "I loved Ali"
    start = time.thread_time()
    reasons = REASONS.of([HEAT] * 1000, [{"role": "user", "content": text}], {})
    assert reasons[0] == ["You mentioned crime", "Like Ali (2001): drama, director Michael Mann"]
    assert time.thread_time() - start < 5


def test_values_of_scripts_without_spaces_are_found_within_words():
    catalog = Catalog([Item("花样年华", 2000, {"genres": "爱情, 剧情"})])
    (found,) = Reasons(catalog, Mentions(catalog)).of(catalog.items, [{"role": "user", "content": "我想看爱情片"}], {})
    assert found == ["You mentioned 爱情"]


def test_prose_is_no_list_of_values():
    assert short_values(PLAIN) == {}
    assert short_values(Item("X", None, {"genres": "a, b,", "empty": ""})) == {"genres": ["a", "b"]}


def test_examples_come_from_the_catalog_and_name_titles_only_without_metadata():
    assert example_requests(CATALOG, REASONS, "films") == [
        "I loved Heat and Ali. What else would I like?",
        "Some horror films, please",
        "I am in the mood for drama films from the 1990s",
    ]
    catalog = Catalog([Item("Emma", None), Item("Dracula", None)])
    examples = example_requests(catalog, Reasons(catalog, Mentions(catalog)), "books")
    assert examples == ["I loved Dracula and Emma. What else would I like?"]
    unnamed = Catalog([Item("300", 2006)])
    assert example_requests(unnamed, Reasons(unnamed, Mentions(unnamed)), "films") == []


CATAN = {"runtime": "90", "players": "4", "text": "You trade and build to settle an island first"}
OF_FILMS = "years, genres, keywords and director, and keep to limits such as “no drama” and “before 1990”"
OF_CATAN = "runtime and players, and keep to limits such as “shorter than two hours”"


@pytest.mark.parametrize(
    ("items", "text"),
    [
        (CATALOG.items, f"I read titles, {OF_FILMS}."),
        ([Item("Emma", None)], "I read titles."),
        ([Item("Catan", None, CATAN)], f"I read titles, {OF_CATAN}."),
    ],
)
def test_what_is_read_is_what_a_wish_is_kept_of(items, text):
    catalog = Catalog(items)
    assert what_is_read(catalog, WishReader(catalog)) == text
