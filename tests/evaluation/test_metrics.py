import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.evaluation.metrics import hit_rate, ndcg, recall, reciprocal_rank
from convrec.evaluation.scoring import mean_scores, score_lists
from tests.rows import list_quality


def test_scores_of_written_lists(catalog):
    rows = [
        {"prompt_id": "a", "conversation_id": "c", "groundtruth": [{"title": "Heat", "year": 1995}], "seen_titles": []},
        {"prompt_id": "a", "conversation_id": "c", "groundtruth": [{"title": "Up", "year": 2009}], "seen_titles": []},
    ]
    scores = score_lists({"a": "Heat (1995)\nHeat (1995)\nPrimer (2004)"}, rows, catalog, 3, [1, 3])
    assert scores["recall_at_1"].tolist() == [1, 0]
    means = mean_scores(scores)
    assert means["recall_at_3"] == 0.5 and means["length"] == 3
    assert means["in_catalog"] == pytest.approx(2 / 3) and means["duplicates"] == pytest.approx(1 / 3)
    assert means["format"] == 0


def test_quality_of_clean_and_of_empty_lists(catalog):
    clean = list_quality("Heat (1995)\nUp (2009)", ["up"], catalog, 2)
    assert clean == {"in_catalog": 1, "format": 1, "duplicates": 0, "seen": 0.5, "length": 2}
    assert list_quality("", [], catalog, 2)["in_catalog"] == 0


@given(
    lists=st.lists(
        st.tuples(
            st.lists(st.integers(0, 11), unique=True, min_size=1, max_size=8),
            st.sets(st.integers(0, 11), min_size=1, max_size=12),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_metrics_are_those_of_a_plain_loop(lists):
    relevance = np.array([[int(item in truth) for item in items] + [0] * (8 - len(items)) for items, truth in lists])
    sizes = np.array([len(truth) for _, truth in lists])
    for row, (items, truth) in enumerate(lists):
        for k in (1, 3, 8):
            hits = [rank for rank, item in enumerate(items[:k], start=1) if item in truth]
            ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(truth), k) + 1))
            assert recall(relevance, sizes, k)[row] == pytest.approx(len(hits) / len(truth))
            assert ndcg(relevance, sizes, k)[row] == pytest.approx(sum(1 / math.log2(r + 1) for r in hits) / ideal)
            assert hit_rate(relevance, sizes, k)[row] == bool(hits)
        ranks = [rank for rank, item in enumerate(items, start=1) if item in truth]
        assert reciprocal_rank(relevance, sizes, 8)[row] == (1 / ranks[0] if ranks else 0)
