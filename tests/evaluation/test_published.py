"""The authors' scoring protocol, by hand and against ours where both agree."""

import math

import numpy as np
import pytest

from convrec.data.catalog import Catalog, Item
from convrec.evaluation.published import published_scores, read_lines
from convrec.evaluation.scoring import score_lists
from tests.rows import make_row

ITEMS = [("Heat", 1995), ("Alien", 1979), ("Big", 1988), ("Jaws", 1975), ("Speed", 1994)]
CATALOG = Catalog([Item(*item) for item in ITEMS])


def _score(text, groundtruth, seen=(), cutoff=20):
    row = make_row("p", groundtruth, seen_titles=list(seen))
    found = published_scores({"p": text}, [row], CATALOG, [cutoff])
    return found[f"recall_at_{cutoff}"].item(), found[f"ndcg_at_{cutoff}"].item()


@pytest.mark.parametrize(
    "line",
    ["Heat (1995)", "3. **Heat (1995)**", '"Heat" (1995) - a classic', "- Heat (Director's Cut) (1995)", "Heat"],
)
def test_lines_are_read_as_title_and_year(line):
    assert read_lines(line) == ([("Heat", 1995)] if line != "Heat" else [])


def test_seen_and_unknown_lines_close_the_ranks():
    text = "Heat (1995)\nUnknown (2001)\nAlien (1979)\nBig (1988)"
    assert _score(text, [("Big", 1988)], seen=["Heat"]) == pytest.approx((1, 1 / math.log2(3)))


def test_titles_and_catalog_years_must_be_exact_but_the_truth_may_be_two_years_away():
    assert _score("Heat (1995)", [("Heat", 1997)]) == (1, 1)
    assert _score("Heat (1995)", [("Heat", 1998)]) == (0, 0)
    assert _score("Heat (1996)", [("Heat", 1995)]) == (0, 0)  # ours: a hit
    assert _score("heat (1995)", [("Heat", 1995)]) == (0, 0)  # ours: a hit


def test_the_ideal_list_is_as_short_as_the_list():
    assert _score("Heat (1995)", [("Heat", 1995), ("Alien", 1979)]) == (0.5, 1)  # ours: NDCG .61
    assert _score("", [("Heat", 1995)]) == (0, 0)


def test_full_lists_of_exact_lines_score_as_ours():
    draw, rows, texts = np.random.default_rng(0), [], {}
    for number in range(200):
        order = [ITEMS[i] for i in draw.permutation(len(ITEMS))]
        wanted = [ITEMS[i] for i in draw.permutation(len(ITEMS))[: draw.integers(1, 5)]]
        rows.append(make_row(f"p{number}", wanted))
        texts[f"p{number}"] = "\n".join(f"{title} ({year})" for title, year in order)
    cutoffs = [2, 5]
    theirs = published_scores(texts, rows, CATALOG, cutoffs)
    ours = score_lists(texts, rows, CATALOG, 5, cutoffs)
    for name in ("recall_at_2", "recall_at_5", "ndcg_at_2", "ndcg_at_5"):
        np.testing.assert_allclose(theirs[name], ours[name], rtol=1e-9)
