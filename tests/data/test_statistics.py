import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.catalog import Catalog, Item
from convrec.data.schemas import spooled
from convrec.data.statistics import describe, gini, popularity_curve
from tests.rows import make_row

COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=250).map(np.array)


def _row(prompt, date, words, truths, seen=()):
    messages = [{"role": "user", "content": " ".join(["word"] * part)} for part in words]
    return make_row(prompt, truths, date=date, messages=messages, seen_titles=list(seen))


HEAT, DUNE, UP, NONE = ("Heat", 1995), ("Dune", 2020), ("up", None), ("No Such Film", 2001)


@pytest.fixture
def splits():
    rows = {
        "train": [
            _row("p", "2022-01-31", [4, 3], [HEAT, DUNE], ["Up"]),
            _row("p", "2022-01-31", [4, 3], [HEAT], ["Up", "Alien", "Dune"]),
            _row("q", "2022-02-01", [60], [HEAT, NONE]),
            _row("r", "", [10_000], [HEAT] * 12),
        ],
        "validation": [_row("s", "2022-03-01", [1], [UP, HEAT, NONE])],
        "test": [_row("t", "2022-04-01", [1], [NONE])],
    }
    return {name: spooled(split) for name, split in rows.items()}


def test_words_of_scripts_without_spaces_are_their_characters():
    rows = spooled([_row("p", "", [1], []) | {"messages": [{"role": "user", "content": "hi 花样年华!"}]}])
    metrics, _ = describe({"train": rows}, Catalog([Item("Heat", 1995)]))
    assert metrics["quantiles"]["words"]["train"]["max"] == 7  # "User:", "hi", "!" and four characters


def test_the_numbers(splits, catalog):
    metrics, _ = describe(splits, catalog)
    assert metrics["months"] == {
        "train": {"2022-01": {"rows": 2, "prompts": 1}, "2022-02": {"rows": 1, "prompts": 1}},
        "validation": {"2022-03": {"rows": 1, "prompts": 1}},
        "test": {"2022-04": {"rows": 1, "prompts": 1}},
    }
    train = {measure: by_split["train"] for measure, by_split in metrics["quantiles"].items()}
    assert train["turns"] == {"min": 1, "median": 1, "mean": pytest.approx(4 / 3), "p95": pytest.approx(1.9), "max": 2}
    assert train["words"] == {  # 9, 61 and 10,001, the roles counted; the prompt of two rows once
        "min": 9,
        "median": 61,
        "mean": pytest.approx(10_071 / 3),
        "p95": pytest.approx(61 + 0.9 * 9940),
        "max": 10_001,
    }
    assert train["groundtruth"]["mean"] == 17 / 4 and train["groundtruth"]["max"] == 12
    assert train["seen_titles"] == {"min": 0, "median": 0.5, "mean": 1, "p95": pytest.approx(2.7), "max": 3}
    # Heat 15 times, Dune (of the nearest year) once, of five items
    assert metrics["popularity"] == {
        "gini": pytest.approx((4 * 15 + 2 * 1) / (5 * 16)),
        "top_1_percent": 15 / 16,  # at least one item
        "top_10_percent": 15 / 16,
    }
    assert metrics["coverage"] == 2 / 5
    assert metrics["warm"] == {"validation": 1 / 2, "test": 0}  # of mentions in the catalog; test has none
    assert metrics["outside_catalog"] == {"train": 1 / 17, "validation": 1 / 3, "test": 1}
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics


def test_the_tables(splits, catalog):
    _, plots = describe(splits, catalog)
    assert plots["rows_by_month"] == [
        {"month": "2022-01", "split": "train", "rows": 2},
        {"month": "2022-02", "split": "train", "rows": 1},
        {"month": "2022-03", "split": "validation", "rows": 1},
        {"month": "2022-04", "split": "test", "rows": 1},
    ]
    assert plots["catalog_popularity"] == [
        {"items": share, "mentions": mentions}
        for share, mentions in zip((0, 0.2, 0.4, 0.6, 0.8, 1), (0, 15 / 16, 1, 1, 1, 1), strict=True)
    ]


@given(COUNTS)
def test_gini_is_half_the_relative_mean_difference(counts):
    differences = sum(abs(int(a) - int(b)) for a in counts for b in counts)
    expected = differences / (2 * len(counts) * counts.sum()) if counts.sum() else 0
    assert gini(counts) == pytest.approx(expected, rel=1e-9)


@given(COUNTS)
def test_the_curve_is_the_share_of_the_most_liked(counts):
    curve = popularity_curve(counts)
    assert len(curve) == min(100, len(counts)) + 1
    for point in curve:
        number = round(point["items"] * len(counts))
        expected = sum(sorted(counts.tolist(), reverse=True)[:number]) / max(1, counts.sum())
        assert point["mentions"] == pytest.approx(expected)
    assert curve[-1]["items"] == 1


def test_the_share_of_the_top_is_of_many_items():
    catalog = Catalog([Item(f"Film {number}", 2000) for number in range(200)])
    truths = [(f"Film {number}", 2000) for number in (0, 0, 0, 1, 1, *range(2, 25))]
    rows = spooled([_row("p", "", [1], truths)])
    popularity = describe({"train": rows}, catalog)[0]["popularity"]
    assert popularity["top_1_percent"] == 5 / 28
    assert popularity["top_10_percent"] == (5 + 18) / 28
