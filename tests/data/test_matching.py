import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.data.matching import UNKNOWN, Truth, judge, make_target, relevance
from convrec.data.parsing import parse_line, parse_list, read_list
from convrec.data.titles import fold
from tests.rows import make_items


def _rel(catalog, text, truth, seen=(), protocol="reward", ranks=4):
    return relevance(text, [Truth(*t) for t in truth], list(seen), catalog, ranks, protocol)


GAMES = Catalog(
    make_items(
        "Chess = Schach = Échecs | 7 Wonders (2010) | Catan: Seafarers | Amelie (2001) = Le fabuleux destin | "
        "Dune (1984) | Dune (2021) | Reversi = Othello | Othello"
    )
)


HITS = [("Chess (1475)", "Chess"), ("Chess", "Chess (1475)"), ("Schach", "Chess"), ("Schach", "Échecs")]
HITS += [("7 Wonders (2010)", "7 Wonders"), ("Amelie (2001)", "Le fabuleux destin (2003)"), ("Dune (2021)", "Dune")]
HITS += [("Le fabuleux destin (2001)", "Amelie (2001)")]
MISSES = [("Catan", "Catan: Seafarers"), ("7 Wonders (2013)", "7 Wonders (2010)"), ("Dune", "Dune")]
MISSES += [("Amelie (2001)", "Le fabuleux destin (2004)"), ("Reversi", "Othello"), ("Othello", "Reversi")]


@pytest.mark.parametrize(("line", "wanted"), HITS + MISSES)
@pytest.mark.parametrize("protocol", ["reward", "evaluation"])
def test_a_truth_may_lack_its_year_or_be_an_alias(line, wanted, protocol):
    (truth,) = make_items(wanted)
    found = _rel(GAMES, line, [(truth.title, truth.year)], protocol=protocol, ranks=1)
    assert found == [int((line, wanted) in HITS)]


@pytest.mark.parametrize("seen", ["Chess", "schach", "ÉCHECS"])
def test_an_item_that_was_seen_by_any_of_its_titles_is_no_hit(seen):
    text = "Chess\nSchach\n7 Wonders (2010)"
    truth = [("Schach", None), ("7 Wonders", None)]
    assert _rel(GAMES, text, truth, seen=[seen]) == [0, 0, 1, 0]
    assert _rel(GAMES, text, truth, seen=[seen], protocol="evaluation") == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("truth", "size"),
    [
        ([("Amelie", 2001), ("Amelie", 2001)], 1),
        ([("Amelie", 2001), ("Le fabuleux destin", 2002)], 1),
        ([("Chess", None), ("schach", 1475)], 1),
        ([("Dune", 1984), ("Dune", 2021)], 2),
        ([("Dune", None), ("Dune", 2021)], 2),
        ([("Primer", 2004), ("PRIMER", 2004), ("Primer", 2005)], 2),
        ([7, ("Othello", None), 6, -1, -2, -1], 4),
    ],
)
def test_the_truths_are_a_set_of_items(truth, size):
    truths = [one if isinstance(one, int) else Truth(*one) for one in truth]
    target = make_target(truths, [], GAMES)
    assert target.num_truths == size
    text = "\n".join(str(item) for item in GAMES.items for _ in range(2))
    for protocol in ("reward", "evaluation"):
        assert sum(judge(read_list(text, GAMES), target, GAMES, 20, protocol)) <= size
    assert sum(relevance(text, truths[:1], [], GAMES, 20, "reward")) == (truth[0] != ("Primer", 2004))


def test_the_year_tolerance_is_a_parameter(catalog):
    truth = [Truth("Heat", 1995)]
    assert relevance("Heat (1995)\nHeat (1996)", truth, [], catalog, 2, "reward", tolerance=0) == [1, 0]
    assert relevance("Heat (1996)", truth, [], catalog, 1, "reward", tolerance=0) == [0]
    assert relevance("Heat (1996)", truth, [], catalog, 1, "reward", tolerance=1) == [1]
    assert relevance("Heat (2002)", truth, [], catalog, 1, "reward", tolerance=7) == [1]
    assert relevance("Heat (1995)", [Truth("Heat", 1998)], [], catalog, 1, "reward") == [0]
    assert relevance("Heat (1995)", [Truth("Heat", 1998)], [], catalog, 1, "reward", tolerance=3) == [1]


SONGS = Catalog([Item("Hello - Adele", 2015), Item("Hello - Lionel Richie", 2015), Item("Hello!", 2015)])


@pytest.mark.parametrize("protocol", ["reward", "evaluation"])
def test_items_that_share_a_part_of_their_title_are_told_apart(protocol):
    text = "Hello - Lionel Richie (2015)\nhello - adele (2015)\nHello! (2015)"
    for truth, hits in [("Hello - Adele", [0, 1, 0]), ("Hello!", [0, 0, 1]), ("Hello", [0, 0, 0])]:
        assert _rel(SONGS, text, [(truth, 2015)], protocol=protocol, ranks=3) == hits
    assert _rel(SONGS, text, [("Hello - Adele", 2015)], seen=["Hello - Adele (2015)"], ranks=3) == [0, 0, 0]


def test_a_truth_that_is_given_by_its_id_is_hit_by_that_item_alone():
    text, dune_of_1984 = "Dune (1985)\nDune (1984)\nDune (2021)", GAMES.find("Dune", 1984)
    assert relevance(text, [dune_of_1984, UNKNOWN], [], GAMES, 3, "reward") == [1, 0, 0]
    assert relevance(text, [("Dune", 2021), dune_of_1984, dune_of_1984], [], GAMES, 3, "reward") == [1, 0, 1]
    assert relevance("Dune (2021)", [dune_of_1984], [], GAMES, 1, "reward") == [0]


CLEAN = [str(item) for item in GAMES.items]
DIRTY = ["", " ", "1. chess", "- Dune (2022)", "**7 Wonders** (2010)", "Dune", "Reversi", "schach", "Up (1999)", "?"]
DIRTY += ["Reversi: X/2 (2010)", "chess (1999)", "v. Up (1999)", "a  b (1999)", "Up, The (1999)", "Up (2101)"]
LINES = st.lists(st.one_of(st.sampled_from(CLEAN), st.sampled_from(DIRTY), st.text(max_size=12)), max_size=8)
TRUTHS = st.lists(st.tuples(st.sampled_from(["Chess", "Schach", "Dune", "Amelie", "Nothing"]),
                            st.sampled_from([None, 1984, 1986, 2001, 2020, 2021])), max_size=4)  # fmt: skip
SEEN = st.lists(st.sampled_from(["Chess", "dune", "Othello", "Amelie"]), max_size=2)


@given(lines=LINES)
def test_a_list_is_read_as_its_lines_are(lines):
    text = "\n".join(lines)
    written = text.removesuffix("\n").split("\n")  # a final newline opens no line
    each = [parse_line(line, GAMES) for line in written]
    assert parse_list(text, GAMES) in (each, each[:-1])
    found = read_list(text, GAMES)
    assert found.items == [entry and entry.index for entry in each]
    unknown = [entry for entry in each if entry and entry.index is None]
    assert found.others == [(fold(entry.title), str(entry.year or "")) for entry in unknown]
    assert all(found.years.get(rank, entry.year) == entry.year for rank, entry in enumerate(each) if entry)
    assert found.exact == all(line in CLEAN for line in written)


def _plain_relevance(text, groundtruth, seen_titles, ranks, protocol):
    """The definition, word for word: every line anew, all truths compared."""
    seen = {i for title in seen_titles for i in GAMES.indices_of_title(title)}
    open_truths, known = [], []
    for title, year in groundtruth:
        index = GAMES.find(title, year)
        if (index, index is None and (fold(title), year)) not in known:
            known.append((index, index is None and (fold(title), year)))
            open_truths.append((fold(title if index is None else GAMES.items[index].title), year))
    found = []
    for written in text.split("\n"):
        entry = parse_line(written, GAMES)
        if entry is None or entry.index is None or entry.index in seen:
            found.append(None)
            continue
        own = fold(GAMES.items[entry.index].title)
        fits = [
            (entry.year is None or year is None, abs((entry.year or year or 0) - (year or entry.year or 0)), place)
            for place, (title, year) in enumerate(open_truths)
            if title == own and (entry.year is None or year is None or abs(entry.year - year) <= 2)
        ]
        if fits:
            del open_truths[min(fits)[2]]
        found.append(int(bool(fits)))
        if sum(rank is not None or protocol == "reward" for rank in found) == ranks:
            break
    kept = [rank or 0 for rank in found if rank is not None or protocol == "reward"]
    return (kept + [0] * ranks)[:ranks]


@given(lines=LINES, groundtruth=TRUTHS, seen=SEEN, protocol=st.sampled_from(["reward", "evaluation"]))
def test_relevance_is_that_of_the_plain_definition(lines, groundtruth, seen, protocol):
    text, truths = "\n".join(lines), [Truth(*truth) for truth in groundtruth]
    expected = _plain_relevance(text, truths, seen, 5, protocol)
    assert relevance(text, truths, seen, GAMES, 5, protocol) == expected
