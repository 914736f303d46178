"""The checks of canonical rows: each problem and policy by hand, and all of them against plain loops."""

import copy
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.data.catalog import Catalog
from convrec.data.checks import check_rows, drop_leaks
from convrec.data.matching import Truth, relevance
from convrec.data.quarantine import Quarantine
from convrec.data.schemas import spooled
from tests.rows import make_items, make_row

CATALOG = Catalog(
    make_items(
        "Amelie (2001) = Le fabuleux destin = Amélie | Heat (1995) | Dune (1984) | Dune (2021) | Chess = Schach | "
        "Othello (1973) | Reversi (1883) = Othello"
    )
)
KEEP = {"seen_truth": "keep", "duplicate_rows": "keep", "dated": False}
NO_PROBLEMS = {"outside_catalog": 0, "seen_truth": 0, "duplicate_rows": 0}


def _row(truths, seen=(), prompt="p1", date="2022-01-01", conversation="c1", user="", disliked=()):
    keys = {"conversation_id": conversation, "user_id": user, "date": date}
    return make_row(prompt, truths, **keys, seen_titles=list(seen), disliked_titles=list(disliked))


def _check(rows, **policies):
    quarantine = Quarantine()
    kept, found = check_rows(rows, CATALOG, quarantine, **{**KEEP, **policies})
    return kept, found, [(row["source"], row["row"], row["reason"], row["value"]) for row in quarantine.rows]


FOUND = [("Heat", 1995), ("Heat", None), ("Chess", 1475), ("Dune", None), ("Othello", 1883)]
FOUND += [("Le fabuleux destin", 2001)]


@pytest.mark.parametrize(
    ("truth", "seen", "problem"),
    [
        *((truth, [], None) for truth in FOUND),
        *((truth, [], "outside_catalog") for truth in (("Heat", 1998), ("Primer", 2004), ("Dune", 2000))),
        (("Heat", 1995), ["heat"], "seen_truth"),
        (("Dune", 1984), ["Dune"], "seen_truth"),
        (("Le fabuleux destin", 2001), ["Amélie"], "seen_truth"),
        (("Chess", None), ["Schach"], "seen_truth"),
        (("Reversi", 1883), ["Othello"], "seen_truth"),
    ],
)
def test_a_truth_that_no_list_can_hit_is_counted_or_dropped(truth, seen, problem):
    rows, (title, year) = [_row([truth], seen)], truth
    assert _check(rows)[1:] == (NO_PROBLEMS | ({problem: 1} if problem else {}), [])
    kept, _, aside = _check(rows, seen_truth="drop")
    is_dropped = problem == "seen_truth"
    assert len(kept) == (not is_dropped)
    written = title if year is None else f"{title} ({year})"
    reasons = {"groundtruth": "seen in the conversation", "rows": "no ground truth is left"}
    assert aside == [(source, "p1", reason, written) for source, reason in reasons.items() if is_dropped]


@pytest.mark.parametrize(
    "change",
    [{"conversation": "c2"}, {"prompt": "p2"}, {"date": "2022-01-02"}, {"seen": ["Up"]}, {"truths": [("Up", 1)]}]
    + [{"user": "u2"}, {"disliked": ["Dune"]}],
)
def test_rows_that_differ_in_one_column_are_no_duplicates(change):
    first = {"truths": [("Heat", 1995)], "seen": ["Dune"]}
    rows = [_row(**first), _row(**{**first, **change})]
    if "truths" in change:
        rows[1]["groundtruth"][0]["year"] = None
    assert _check(rows, duplicate_rows="drop")[1]["duplicate_rows"] == 0


def test_equal_and_undated_rows_are_dropped_with_their_reasons():
    rows = [_row([("Heat", 1995)]), _row([("Dune", 2021)], date=""), _row([("Heat", 1995)])]
    kept, found, aside = _check(rows, duplicate_rows="drop", dated=True)
    assert found["duplicate_rows"] == 1 and [row["groundtruth"][0]["title"] for row in kept] == ["Heat"]
    assert aside == [("rows", "p1", "no date", "Dune (2021)"), ("rows", "p1", "equal to an earlier row", "Heat (1995)")]


def test_leaks_are_dropped_with_their_reasons(quarantine):
    train = spooled(_row([("Heat", 1995)], prompt=f"p{n}") for n in range(3))
    assert drop_leaks(train, [None, "same prompt", None], quarantine)["prompt_id"].tolist() == ["p0", "p2"]
    assert quarantine.rows == [
        {"source": "train", "row": "p1", "reason": "same prompt", "value": train["conversation_id"][1]}
    ]


TITLES = st.sampled_from(
    ["Amelie", "AMÉLIE", "Le fabuleux destin", "Heat", "Dune", "Chess", "schach", "Othello", "Primer"]
)
YEARS = st.sampled_from([None, 1883, 1885, 1973, 1982, 1984, 1986, 1995, 1998, 2001, 2002, 2019, 2021])
ROWS = st.builds(
    _row,
    truths=st.lists(st.tuples(TITLES, YEARS), min_size=1, max_size=3),
    seen=st.lists(TITLES, max_size=2),
    prompt=st.sampled_from(["p1", "p2"]),
    date=st.sampled_from(["", "2022-01-01"]),
)
POLICIES = st.fixed_dictionaries({name: st.sampled_from(["keep", "drop"]) for name in ("seen_truth", "duplicate_rows")})


def _problem_by_loop(item, seen):
    """Whether any line of the catalog is a hit, by the definition that rewards and evaluation use."""
    truth = Truth(item["title"], item["year"])

    def can_be_hit(seen_titles):
        lines = map(str, CATALOG.items)
        return any(relevance(line, [truth], seen_titles, CATALOG, 1, "reward") == [1] for line in lines)

    if can_be_hit(seen):
        return None
    named = any(item["title"].casefold() == title.casefold() for title in seen)
    return "seen_truth" if named or can_be_hit([]) else "outside_catalog"


@settings(max_examples=80)
@given(rows=st.lists(ROWS, min_size=1, max_size=5), policies=POLICIES, dated=st.booleans())
def test_the_checks_are_what_plain_loops_find(rows, policies, dated):
    found, kept_rows, aside, earlier = Counter(NO_PROBLEMS), [], Counter(), []
    for row in rows:
        problems = [_problem_by_loop(item, row["seen_titles"]) for item in row["groundtruth"]]
        found.update(problem for problem in problems if problem)
        left = [
            i for i, p in zip(row["groundtruth"], problems, strict=True) if p != "seen_truth" or policies[p] == "keep"
        ]
        aside["groundtruth"] += len(problems) - len(left)
        repeated = row in earlier
        earlier.append(row)
        found["duplicate_rows"] += repeated
        if not left or (dated and not row["date"]) or (repeated and policies["duplicate_rows"] == "drop"):
            aside["rows"] += 1
        else:
            kept_rows.append(row | {"groundtruth": left, "repeatable_titles": [], "split": ""})
    given, quarantine = copy.deepcopy(rows), Quarantine()
    kept, counted = check_rows(rows, CATALOG, quarantine, dated=dated, **policies)
    assert counted == dict(found)
    assert list(kept) == kept_rows
    assert Counter(row["source"] for row in quarantine.rows) == +aside
    assert len(kept) + aside["rows"] == len(rows) == quarantine.num_read["rows"]
    assert given == rows, "the rows that were given do not change"
