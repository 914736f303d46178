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
        Item("The Wedding Ringer", None),
        Item("The Lighthouse", 2019),
        Item("Diary of the Dead", 2007),
        Item("Dumb and Dumber", None),
        Item("Blade Runner", None),
        Item("Straw Dogs", 2011),
        Item("The Stranger", 2010),
        Item("Revolution Road", 2008),
        Item("Resolution", 2012),
        Item("The Boy in the Striped Pyjamas", 2008),
        Item("Whatever Happened to Baby Jane?", 1962),
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
        ("The Wedding Singer (1998)", None, []),
        ("The Wedding Ringer (2015)", "exact", ["The Wedding Ringer"]),
        ("The Wedding Rinegr (2015)", None, []),
        ("The Night House (2021)", None, []),
        ("Day of the Dead (2008)", None, []),
        ("Dumb and Dumber To (2014)", None, []),
        ("Blade Runner 2049", None, []),
        ("Blade Runner 2049 (2017)", None, []),
        ("Stray Dogs (2013)", None, []),
        ("The Strangers (2009)", None, []),
        ("Revolution (2012)", None, []),
        ("Resolutoin (2012)", "fuzzy", ["Resolution (2012)"]),
        ("Resolutoin (2011)", "fuzzy", ["Resolution (2012)"]),
        ("Resolutoin (2010)", None, []),
        ("The Boy in the Striped Pajamas (2008)", "fuzzy", ["The Boy in the Striped Pyjamas (2008)"]),
        ("What Ever Happened to Baby Jane?", "fuzzy", ["Whatever Happened to Baby Jane? (1962)"]),
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
