import pytest

from convrec.data.catalog import Catalog, Item
from convrec.data.parsing import parse_line
from convrec.demonstrations.grounding import Grounder

FILMS = Catalog(
    [
        Item("The Godfather Part II", 1974),
        Item("Toy Story", 1995),
        Item("Toy Story 2", 1999),
        Item("The Hustler", 1961),
        Item("How the Grinch Stole Christmas", 2000),
        Item("Halloween", 1978),
        Item("Halloween", 2018),
        Item("The Texas Chain Saw Massacre", 1974),
        Item("The Shawshank Redemption", 1994),
        Item("Solaris", 1972),
        Item("Solaria", 1972),
        Item("Jumanji", 2017),
        Item("Avatar", None),
    ]
)


@pytest.mark.parametrize(
    ("line", "kind", "items"),
    [
        ("The Godfather Part II (1974)", "exact", ["The Godfather Part II (1974)"]),
        ("the  godfather part ii (1975)", "exact", ["The Godfather Part II (1974)"]),
        ("Halloween", "exact", ["Halloween (1978)", "Halloween (2018)"]),
        ("Halloween (2017)", "exact", ["Halloween (2018)"]),
        ("Godfather: Part 2, The (1974)", "normalised", ["The Godfather Part II (1974)"]),
        ("The Texas Chainsaw Massacre (1974)", "normalised", ["The Texas Chain Saw Massacre (1974)"]),
        ("The Shawshenk Redemption (1994)", "fuzzy", ["The Shawshank Redemption (1994)"]),
        ("The Shawshank Redemtion", "fuzzy", ["The Shawshank Redemption (1994)"]),
        ("Shawshank Redemption (1994)", "normalised", ["The Shawshank Redemption (1994)"]),
        ("Hustler (1961)", "normalised", ["The Hustler (1961)"]),
        ("Hustler (1960)", None, []),
        ("The Solaris (1973)", None, []),
        ("The Shawshenk Redemption (2004)", None, []),
        ("Toy Story 3 (1999)", None, []),
        ("Toy Storys 2 (1995)", None, []),
        ("Hustlers", None, []),
        ("Solaric (1972)", None, []),
        ("Nothing of the kind (1974)", None, []),
        ("Halloween: The Shape Returns (2018)", "truncated", ["Halloween (2018)"]),
        ("Halloween: The Shape Returns (2016)", None, []),
        ("Halloween (Carpenter) (1978)", "truncated", ["Halloween (1978)"]),
        ("Halloween: Part II (1978)", None, []),
        ("The Hustler (Extended Cut)", "truncated", ["The Hustler (1961)"]),
        ("Toy Story: Woody Returns (1995)", None, []),
        ("Toy Story (Woody Returns)", None, []),
        ("The Shawshenk: Redemption (1994)", "fuzzy", ["The Shawshank Redemption (1994)"]),
        ("Solaris: The Zqx (1972)", "truncated", ["Solaris (1972)"]),
        ("Jumanji: The Next Level (2019)", None, []),
        ("Avatar: The Way of Water (2022)", None, []),
        ("Avatar: The Way of Water", None, []),
        ("Avatar (James Cameron)", "truncated", ["Avatar"]),
        ("[Hustler]²", None, []),
    ],
)
def test_a_title_is_matched_by_the_first_way_that_fits(line, kind, items):
    (match,) = Grounder(FILMS).match([parse_line(line, FILMS, reading="lenient")])
    assert (match.kind if match else None) == kind
    assert ([str(FILMS.items[i]) for i in match.indices] if match else []) == items


def test_many_titles_are_matched_as_one_by_one():
    lines = [f"{item} again" for item in FILMS.items] * 100
    entries = [parse_line(line, FILMS, reading="lenient") for line in lines]
    grounder = Grounder(FILMS)
    assert grounder.match(entries) == [grounder.match([entry])[0] for entry in entries]
