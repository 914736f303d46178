"""Replays logged answers of the champion through a registered version."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities.model_registry import ModelVersion

from convrec.config.params import Params
from convrec.data.catalog import Catalog
from convrec.data.parquet import MAX_ITEMS, parquet_frame
from convrec.feedback.location import open_store
from convrec.generation.lists import EngineOptions
from convrec.monitoring.estimates import HEADLINE, Replay
from convrec.monitoring.replay import challenger_lists, read_logged, replay
from convrec.paths import Paths
from convrec.registry.versions import RegisteredModel
from convrec.similarity.embedding import make_embedder


def replay_version(
    params: Params,
    paths: Paths,
    model: RegisteredModel,
    champion: str,
    window_days: int,
    until: datetime | None = None,
    feedback: str | None = None,
) -> Replay:
    """Return the estimates for a version's lists on the champion's answers of the last `window_days`.

    `until` is the end of the window, by default now; `feedback` is the URL of the database. Raises `InputError` if no
    usable answers are stored.
    """
    end = until or datetime.now(UTC)
    options = EngineOptions.on_this_machine(**params.engine_options())
    store = open_store(paths.root, feedback)
    try:
        logged = read_logged(store, champion, end - timedelta(days=window_days), end)
    finally:
        store.close()
    catalog = Catalog.from_frame(parquet_frame(Path(model.catalog), max_rows=MAX_ITEMS))
    lists = challenger_lists(logged, model.checkpoint, catalog, model.settings, options)
    embedder = partial(make_embedder, **params.demonstrations.embedder.model_dump(), device=params.common.device)
    return replay(logged, lists, catalog, embedder, params.evaluate.bootstrap_samples, params.common.seed)


def record_replay(client: mlflow.MlflowClient, version: ModelVersion, result: dict[str, Any]) -> None:
    """Record a replay in the version's run: the whole as `replay/replay.json`, the difference as metrics."""
    if not version.run_id:
        return
    client.log_dict(version.run_id, result, "replay/replay.json")
    gain = result["differences"][HEADLINE]
    for name in ("mean", "low", "high"):
        client.log_metric(version.run_id, f"replay/difference_{name}", gain[name])
    client.log_metric(version.run_id, "replay/effective_size", result["effective_size"])
