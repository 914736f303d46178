import pytest

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
