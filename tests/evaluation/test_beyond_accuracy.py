import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from convrec.data.catalog import Catalog, Item
from convrec.evaluation.beyond_accuracy import (
    broken_wishes,
    concentration,
    coverage,
    describe_lists,
    diversity,
    mentions,
    recommended,
)
from convrec.evaluation.evaluation import Evaluation
from convrec.generation.engine import EngineOptions
from convrec.generation.lists import ListSettings
from tests.rows import make_row

HEAT, DUNE_1984, DUNE_2021, UP, ALIEN = range(5)


def test_mentions_are_of_catalog_items(catalog):
    rows = [make_row("a", [("Heat", 1996), ("Primer", 2004)]), make_row("b", [("heat", 1995), ("Dune", 2020)])]
    assert mentions(rows, catalog).tolist() == [2, 0, 1, 0, 0]


def test_recommended_items_are_the_first_usable_ones_each_once(catalog):
    text = "Primer (2004)\nUp (2009)\n\nHeat (1995)\nHeat (1995)\nAlien (1979)"
    assert recommended(text, ["up"], catalog, 3) == [HEAT, ALIEN]
    assert recommended(text, ["up"], catalog, 2) == [HEAT]
    assert recommended(text, [], catalog, 20) == [UP, HEAT, ALIEN]


@given(lists=st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6), min_size=1, max_size=5))
def test_diversity_is_that_of_a_loop_over_pairs(lists):
    dense = np.random.default_rng(0).normal(size=(10, 4))
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    found = diversity(lists, sparse.csr_array(dense))
    for items, value in zip(lists, found, strict=True):
        pairs = [1 - dense[a] @ dense[b] for place, a in enumerate(items) for b in items[place + 1 :]]
        assert value == pytest.approx(np.mean(pairs)) if pairs else np.isnan(value)


def test_concentration_is_the_share_of_the_ten_commonest_first_items_and_coverage_that_of_distinct_ones():
    assert concentration([[first] for first in range(12)] + [[0, 5], []]) == 11 / 13
    assert coverage([[0, 1], [1, 2], []], 4) == 0.75 and coverage([[]], 4) == 0


def test_a_list_breaks_an_exclusion_with_any_of_its_items():
    catalog = Catalog([Item("Alien", 1979, {"genres": "horror"}), Item("Up", 2009, {"genres": "family"})])
    said = {"a": "no horror", "b": "nothing scary", "c": "anything"}
    rows = [{"prompt_id": key, "messages": [{"role": "user", "content": text}]} for key, text in said.items()]
    assert broken_wishes({"a": [1, 0], "b": [1], "c": [0]}, rows, catalog) == 0.5
    assert broken_wishes({"c": [0]}, rows[2:], catalog) == 0
    assert broken_wishes({"a": [0], "b": [], "c": []}, rows, catalog) == 1
    assert np.isnan(broken_wishes({"a": [], "b": [], "c": [0]}, rows, catalog))


def test_what_no_list_can_tell_is_left_out(catalog):
    row = {"prompt_id": "a", "messages": [{"role": "user", "content": "no crime"}], "seen_titles": []}
    settings, engine = ListSettings(None, 2, 32), EngineOptions("transformers", "cpu", 1, 1, 1.0)
    evaluation = Evaluation([row], catalog, settings, engine, [1], 0)
    assert evaluation.of_all_lists({"a": ""}) == {"coverage": 0.0}


def test_lists_are_described_row_by_row(catalog):
    liked = {"a": [("Heat", 1995)], "b": [("Primer", 2004)]}
    rows = [*(make_row(*one) for one in liked.items()), make_row("a", [("Up", 2009), ("Heat", 1995)])]
    counts = np.array([6, 0, 0, 2, 3])
    table = describe_lists({"a": [HEAT, DUNE_1984], "b": []}, rows, counts, sparse.csr_array(np.eye(5)), catalog)
    assert table["truth_popularity"].tolist() == [6, 0, 4]
    assert table["popularity"].tolist()[::2] == [3, 3] and table["diversity"].tolist()[::2] == [1, 1]
    assert table["novelty"][0] == pytest.approx((-np.log2(7 / 16) - np.log2(1 / 16)) / 2)
    assert table.loc[1, ["novelty", "diversity", "popularity"]].isna().all()
