from typing import Any

import pytest

from convrec.evaluation.headline import headline_metrics
from convrec.registry.tracking import metric_values


def _scores(value: float) -> dict[str, Any]:
    return {"ndcg_at_20": value, "recall_at_20": 2 * value, "mrr": 3 * value, "intervals": {}}


def test_the_headlines_are_each_systems_metric_and_the_gains_of_the_served_model():
    systems = {"popularity": 0.1, "neighbours": 0.2, "sft": 0.15, "rank_grpo_free": 0.25, "rank_grpo": 0.3}
    gains = {
        f"rank_grpo_over_{other}": {"mean": 0.3 - value, "low": 0.0, "high": 1.0}
        for other, value in systems.items()
        if other != "rank_grpo"
    }
    evaluation = {name: _scores(value) for name, value in systems.items()}
    evaluation |= {"n_rows": 7, "best_baseline": "neighbours", "paired_ndcg_at_20": gains, "slices": {"month": {}}}
    found = metric_values(headline_metrics(evaluation, "ndcg_at_20"), "test/")
    assert found == pytest.approx(
        {
            "test/n_rows": 7.0,
            **{f"test/ndcg_at_20/{name}": value for name, value in systems.items()},
            "test/recall_at_20/rank_grpo": 0.6,
            "test/gain/over_sft": 0.15,
            "test/gain/over_neighbours": 0.1,
        }
    )
