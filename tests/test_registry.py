import mlflow
import pytest

from convrec import registry, tracking


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A fresh local store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    tracking.connect()
    return mlflow.MlflowClient()


def _version(client, score: float):
    if not client.search_registered_models():
        client.create_registered_model(registry.MODEL_NAME)
    tags = {"test.ndcg_at_20": str(score), "n_rows": "9"}
    return client.create_model_version(registry.MODEL_NAME, source="somewhere", tags=tags)


def test_the_champion_is_who_scores_best_on_the_same_split(store):
    first = _version(store, 0.30)
    assert registry.promote(first, "ndcg_at_20", None).promoted
    assert registry.promote(first, "ndcg_at_20", 0.30).reason == "version 1 is the champion already"
    worse, equal, better = (_version(store, score) for score in (0.29, 0.30, 0.31))
    assert not registry.promote(worse, "ndcg_at_20", 0.30).promoted
    assert not registry.promote(equal, "ndcg_at_20", 0.30).promoted
    assert registry.alias_version(registry.CHAMPION).version == first.version
    decision = registry.promote(better, "ndcg_at_20", 0.30)
    assert (
        decision.promoted and decision.reason == "ndcg_at_20 0.3100 beats 0.3000 of version 1 on the same 9 test rows"
    )
    assert registry.alias_version(registry.CHAMPION).version == better.version
    assert '"promoted": true' in store.get_model_version(registry.MODEL_NAME, better.version).tags["promotion"]
