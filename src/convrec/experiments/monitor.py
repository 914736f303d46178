"""`convrec monitor`: checks the recorded feedback of the last days, and writes the report."""

import logging
from datetime import datetime
from functools import partial
from typing import Any

from convrec.config.params import Params
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows
from convrec.feedback.location import open_store
from convrec.files.atomic import write_text
from convrec.files.results import write_json
from convrec.monitoring.report import render_report
from convrec.monitoring.settings import SETTINGS_FILE, load_monitoring
from convrec.monitoring.watch import Watched, watch
from convrec.paths import Paths
from convrec.registry.model_card import TEST_TAG
from convrec.registry.versions import CHAMPION, MODEL_NAME, alias_version
from convrec.similarity.embedding import make_embedder
from convrec.tracking import connect, data_tags, group_run

logger = logging.getLogger(__name__)

STAGE = "monitoring"  # the tag of the run, and the name of the JSON file beside the report


def check_monitoring(paths: Paths, feedback: str | None = None) -> None:
    """Raise `InputError` if monitoring.yaml is invalid, or data or feedback are missing, before any work."""
    load_monitoring(paths.root / SETTINGS_FILE)
    paths.require_split("train")
    open_store(paths.root, feedback).close()


def monitor(params: Params, paths: Paths, until: datetime, feedback: str | None = None) -> dict[str, Any]:
    """Check the window that ends at `until`; return window and checks as JSON values, `run_id` and `report`.

    The report is `runs/monitoring.html`; it is also an artifact of an MLflow run, with the figures as its metrics.
    `feedback` is the URL of the database. Raises `InputError` if settings, data or feedback are missing.
    """
    check_monitoring(paths, feedback)
    settings = load_monitoring(paths.root / SETTINGS_FILE)
    store = open_store(paths.root, feedback)
    options = params.demonstrations.embedder.model_dump()
    embedder = partial(make_embedder, **options, device=params.common.device)
    model, tested = _champion(paths)
    values = {"monitoring": settings.model_dump()}
    tags = {**params.tags(), **data_tags(paths), "stage": STAGE, "model": model}
    with group_run(f"monitor {until:%Y-%m-%d %H:%M}", tags, values) as run:
        rows, catalog = read_rows(paths.split("train")), Catalog.read(paths.catalog)
        try:
            found = watch(store, catalog, rows, settings, embedder, until, params.common.seed)
        finally:
            store.close()
        write_text(paths.monitoring_report, render_report(found, model, tested))
        result = {**found.to_json(), "model": model, "run_id": run.run_id, "report": str(paths.monitoring_report)}
        write_json(paths.monitoring_figures, result)
        run.log_metrics(_metrics(found))
        run.set_tags({"alarm": ", ".join(check.name for check in found.alarms)})
        run.log_artifact(paths.monitoring_report)
        run.log_artifact(paths.monitoring_figures)
    return result


def _champion(paths: Paths) -> tuple[str, str]:
    """Return the champion's name and its result on the test split; the second is empty without a champion."""
    connect(paths.root)
    version = alias_version(CHAMPION)
    if version is None:
        return "no champion", ""
    tested = {name.removeprefix(TEST_TAG): value for name, value in version.tags.items() if name.startswith(TEST_TAG)}
    name, value = next(iter(tested.items()), ("", ""))
    shown = f"{name.replace('_at_', '@').replace('ndcg', 'NDCG')} {value.split()[0]}" if value else ""
    return f"{MODEL_NAME} version {version.version}", shown


def _metrics(found: Watched) -> dict[str, float]:
    """Return each figure under the check's name, with the ends of its interval, its sample, and 1 for an alarm."""
    metrics: dict[str, float] = {"alarms": len(found.alarms)}
    for check in found.checks:
        metrics[f"{check.name}/n"] = check.n
        if check.figure is not None and check.low is not None and check.high is not None:
            metrics |= {f"{check.name}/figure": check.figure, f"{check.name}/alarm": float(check in found.alarms)}
            metrics |= {f"{check.name}/low": check.low, f"{check.name}/high": check.high}
    return metrics
