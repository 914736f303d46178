"""Who of the nearest conversations' people liked an item, where that is more than chance."""

import numpy as np

from convrec.classical.embedding import TfidfEmbedder
from convrec.classical.evidence import Evidence
from convrec.classical.guidance import Guidance
from convrec.classical.neighbours import Neighbours
from convrec.data.catalog import Catalog, Item
from tests.rows import make_row

HEAT, DUNE, UP, ALIEN = ("Heat", 1995), ("Dune", 2021), ("Up", 2009), ("Alien", 1979)
ASKED = [make_row("x", text="a heist, please")]


def _rows(liked, text, number, **more):
    return [make_row(f"{text} {place}", liked, f"{text} {place}", **more) for place in range(number)]


OTHERS = _rows([DUNE], "desert", 60) + _rows([UP], "balloons", 60)


def _likers(catalog, rows, number=30, prompts=ASKED):
    voters = Neighbours.fit(rows, catalog, TfidfEmbedder)
    return [{str(catalog.items[i]): n for i, n in own.items()} for own in voters.likers(prompts, number)]


def test_of_equal_cosines_the_earlier_conversations_vote_however_many_are_asked_for(catalog):
    rows = [
        make_row(f"{text} {n}", [HEAT], text, user_id=f"u{n}") for n in range(90) for text in ("a heist", "robbers")
    ]
    voters = Neighbours.fit(rows, catalog, TfidfEmbedder)
    few, many = (voters.nearest(ASKED, number).places[0].tolist() for number in (7, 120))
    assert few == list(range(0, 14, 2)) and many == [*range(0, 180, 2), *range(1, 60, 2)]


def test_people_of_the_nearest_conversations_are_counted_once(catalog):
    rows = _rows([HEAT], "heist", 4) + _rows([HEAT, ALIEN], "heist again", 5, user_id="ann") + OTHERS
    assert _likers(catalog, rows) == [{"Heat (1995)": 5}], "Alien has one liker, who asked five times"


def test_nothing_is_told_of_one_or_two_people_or_where_as_many_would_like_it_by_chance(catalog):
    for number in (1, 2):
        assert _likers(catalog, _rows([HEAT], "heist", number) + OTHERS) == [{}]
    everyone = [make_row(f"{place}", [HEAT], f"heist {place}") for place in range(20)]
    assert _likers(catalog, everyone) == [{}], "all people like it, whatever they asked for"
    assert _likers(catalog, _rows([HEAT], "heist", 20, user_id="all") + OTHERS) == [{}], "one person"
    nothing_shared = [make_row("x", text="romance")]
    assert _likers(catalog, _rows([HEAT], "heist", 20) + OTHERS, prompts=nothing_shared) == [{}]


def test_likes_at_random_are_told_of_almost_no_item():
    """Of 200 prompts over 300 items that are liked without regard to what was asked, few have an item that is told."""
    chance = np.random.default_rng(0)
    catalog = Catalog([Item(f"Film {number}", 2000) for number in range(300)])
    popular = chance.dirichlet(np.full(300, 0.3))
    words = [f"word{number}" for number in range(40)]

    def said():
        return " ".join(chance.choice(words, 6))

    rows = [
        make_row(f"{place}", [(f"Film {i}", 2000) for i in chance.choice(300, 4, p=popular)], said())
        for place in range(1000)
    ]
    told = _likers(catalog, rows, 200, [make_row(f"x{place}", text=said()) for place in range(200)])
    assert sum(map(bool, told)) <= 0.05 * len(told)


def test_without_votes_in_the_guidance_nobody_is_told(catalog):
    evidence = Evidence.fit(_rows([HEAT], "heist", 9) + OTHERS, catalog, TfidfEmbedder, neighbours=30, kept=3)
    likers = [Guidance(evidence, {"content": 1.0, "neighbours": w}, {}).likers(ASKED) for w in (0.0, 2.0)]
    assert likers == [[{}], [{catalog.index_of_line("Heat (1995)"): 9}]]
