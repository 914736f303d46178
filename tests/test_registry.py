import mlflow
import pytest
from mlflow.exceptions import MlflowException

from convrec import registry, tracking
from convrec.errors import InputError


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


def test_metrics_wait_for_a_lost_server_and_arrive_in_order(store, monkeypatch, tmp_path):
    with tracking.stage_run("sft", {"sft": {"lr": 1, "deep": {"er": 2}}}, {}, tmp_path / "runs" / "sft.json") as run:
        send = run._client.log_batch

        def lost(*_, **__):
            raise MlflowException("connection refused")

        monkeypatch.setattr(run._client, "log_batch", lost)
        run.log_metrics({"loss": 3.0}, 1)
        run.log_metrics({"loss": 2.0}, 2)
        monkeypatch.setattr(run._client, "log_batch", send)
        run.log_metrics({"loss": 1.0}, 3)
    history = store.get_metric_history(run.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert store.get_run(run.run_id).data.params == {"sft.lr": "1", "sft.deep.er": "2"}


def test_a_failed_stage_fails_its_run(store, tmp_path):
    with pytest.raises(InputError), tracking.stage_run("data", {}, {}, tmp_path / "run.json") as run:
        raise InputError("bad")
    assert store.get_run(run.run_id).info.status == "FAILED"
