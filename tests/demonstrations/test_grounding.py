import pytest

from convrec.data.catalog import Catalog
from convrec.data.parsing import parse_line
from convrec.demonstrations.grounding import Grounder
from tests.rows import make_items

FILMS = Catalog(
    make_items(
        "The Godfather Part II (1974) | Toy Story (1995) | Toy Story 2 (1999) | The Hustler (1961) | "
        "How the Grinch Stole Christmas (2000) | Halloween (1978) | Halloween (2018) | "
        "The Texas Chain Saw Massacre (1974) | The Shawshank Redemption (1994) | Solaris (1972) | Solaria (1972) | "
        "Jumanji (2017) | Avatar | The Wedding Ringer | The Lighthouse (2019) | Diary of the Dead (2007) | "
        "Dumb and Dumber | Blade Runner | Straw Dogs (2011) | The Stranger (2010) | Revolution Road (2008) | "
        "Resolution (2012) | The Boy in the Striped Pyjamas (2008) | Whatever Happened to Baby Jane? (1962)"
    )
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
        ("Halloween: The Shape Returns (2018)", "truncated", ["Halloween (2018)"]),
        ("Halloween (Carpenter) (1978)", "truncated", ["Halloween (1978)"]),
        ("The Hustler (Extended Cut)", "truncated", ["The Hustler (1961)"]),
        ("The Shawshenk: Redemption (1994)", "fuzzy", ["The Shawshank Redemption (1994)"]),
        ("Solaris: The Zqx (1972)", "truncated", ["Solaris (1972)"]),
        ("Avatar (James Cameron)", "truncated", ["Avatar"]),
        ("The Wedding Ringer (2015)", "exact", ["The Wedding Ringer"]),
        ("Resolutoin (2012)", "fuzzy", ["Resolution (2012)"]),
        ("Resolutoin (2011)", "fuzzy", ["Resolution (2012)"]),
        ("The Boy in the Striped Pajamas (2008)", "fuzzy", ["The Boy in the Striped Pyjamas (2008)"]),
        ("What Ever Happened to Baby Jane?", "fuzzy", ["Whatever Happened to Baby Jane? (1962)"]),
    ],
)
def test_a_title_is_matched_by_the_first_way_that_fits(line, kind, items):
    (match,) = Grounder(FILMS).match([parse_line(line, FILMS, reading="lenient")])
    assert match is not None and (match.kind, [str(FILMS.items[i]) for i in match.indices]) == (kind, items)


NOT_IN_CATALOG = (
    "Hustler (1960) | The Solaris (1973) | The Shawshenk Redemption (2004) | Toy Story 3 (1999) | "
    "Toy Storys 2 (1995) | Hustlers | Solaric (1972) | Nothing of the kind (1974) | "
    "Halloween: The Shape Returns (2016) | Halloween: Part II (1978) | Toy Story: Woody Returns (1995) | "
    "Toy Story (Woody Returns) | Jumanji: The Next Level (2019) | Avatar: The Way of Water (2022) | "
    "Avatar: The Way of Water | [Hustler]² | The Wedding Singer (1998) | The Wedding Rinegr (2015) | "
    "The Night House (2021) | Day of the Dead (2008) | Dumb and Dumber To (2014) | Blade Runner 2049 | "
    "Blade Runner 2049 (2017) | Stray Dogs (2013) | The Strangers (2009) | Revolution (2012) | Resolutoin (2010)"
)


@pytest.mark.parametrize("line", NOT_IN_CATALOG.split(" | "))
def test_a_title_that_resembles_another_one_is_not_matched(line):
    assert Grounder(FILMS).match([parse_line(line, FILMS, reading="lenient")]) == [None]


def test_many_titles_are_matched_as_one_by_one():
    lines = [f"{item} again" for item in FILMS.items] * 100
    entries = [parse_line(line, FILMS, reading="lenient") for line in lines]
    grounder = Grounder(FILMS)
    assert grounder.match(entries) == [grounder.match([entry])[0] for entry in entries]
