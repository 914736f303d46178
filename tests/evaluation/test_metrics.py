import math

import numpy as np
import pandas as pd
import pytest

from convrec.evaluation.comparison import mean_interval, paired_interval
from convrec.evaluation.metrics import ndcg, recall
from convrec.evaluation.scoring import list_quality, mean_scores, score_lists


def test_hand_computed_recall_and_ndcg():
    relevance = np.array([[1, 0, 1, 0], [0, 0, 0, 0]])
    truths = np.array([3, 1])
    np.testing.assert_allclose(recall(relevance, truths, 2), [1 / 3, 0])
    np.testing.assert_allclose(recall(relevance, truths, 4), [2 / 3, 0])
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    np.testing.assert_allclose(ndcg(relevance, truths, 4), [1.5 / ideal, 0])
    np.testing.assert_allclose(ndcg(relevance, truths, 2), [1 / (1 + 1 / math.log2(3)), 0])


def test_perfect_lists_score_one():
    relevance = np.array([[1, 1, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_allclose(ndcg(relevance, np.array([2, 1]), 4), 1)


def test_scores_of_written_lists(catalog):
    rows = [
        {"prompt_id": "a", "groundtruth": [{"title": "Heat", "year": 1995}], "seen_titles": []},
        {"prompt_id": "a", "groundtruth": [{"title": "Up", "year": 2009}], "seen_titles": []},
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


def test_intervals_cover_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        prompts = np.repeat(np.arange(60), 2)
        values = rng.normal(size=60)[prompts] + 0.1 * rng.normal(size=120)
        interval = mean_interval(pd.DataFrame({"prompt_id": prompts, "m": values}), "m", 300, seed)
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


def test_paired_interval_needs_the_same_rows():
    one = pd.DataFrame({"prompt_id": ["a", "b"], "m": [1.0, 0.0]})
    other = pd.DataFrame({"prompt_id": ["a", "b"], "m": [0.5, 0.0]})
    assert paired_interval(one, other, "m", 200, 0).mean == 0.25
    with pytest.raises(ValueError, match="same rows"):
        paired_interval(one, other.iloc[::-1], "m", 200, 0)
