"""`convrec monitor`: checks the recorded feedback of the last days, and writes the report."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any

from convrec.classical.embedding import make_embedder
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_rows
from convrec.project.atomic import write_text
from convrec.project.config.params import Params
from convrec.project.device import pick_device
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.registry.model_card import TEST_TAG
from convrec.registry.tracking import connect, open_run
from convrec.registry.versions import CHAMPION, alias_version, model_name
from convrec.service.feedback import open_store
from convrec.service.monitoring.checks import ALARM, Check, run_checks
from convrec.service.monitoring.report import render_report
from convrec.service.monitoring.settings import load_monitoring
from convrec.service.monitoring.window import read_watched

STAGE = "monitoring"  # the tag of the run, and the name of the JSON file beside the report


def monitor(params: Params, paths: Paths, until: datetime, feedback: str | None = None) -> dict[str, Any]:
    """Check the window that ends at `until`; return window and checks as JSON values, `run_id` and `report`.

    The report is `runs/monitoring.html`; it is also an artifact of an MLflow run, with the figures as its metrics.
    `feedback` is the URL of the database. Raises `InputError` if settings, data or feedback are missing.
    """
    if until.year < 1970:
        raise InputError(f"until = {until.date()}: give a day from 1970 on")
    settings, seed = load_monitoring(paths.root), params.common.seed
    paths.require_split("train")
    device = pick_device(params.common.device)
    embedder = partial(make_embedder, **params.demonstrations.embedder.model_dump(), device=device)
    with closing(open_store(feedback, paths.root)) as store:
        model, tested = _champion(paths)
        tags = {**params.tags(), "stage": STAGE, "model": model}
        with open_run(f"monitor {until:%Y-%m-%d %H:%M}", tags, {"monitoring": settings.model_dump()}) as run:
            rows, catalog = read_rows(paths.split("train")), Catalog.read(paths.catalog)
            watched = read_watched(store, catalog, rows, settings, until, seed)
            checks = run_checks(settings.checks, watched, embedder, seed)
            alarms = [check.name for check in checks if check.status == ALARM]
            write_text(paths.monitoring_report, render_report(watched, checks, model, tested))
            result = {
                "since": watched.since.isoformat(),
                "until": until.isoformat(),
                "alarm": bool(alarms),
                "not_counted": watched.window.num_foreign,
                "checks": [asdict(check) for check in checks],
                "model": model,
                "run_id": run.run_id,
                "report": str(paths.monitoring_report),
            }
            write_json(paths.monitoring_figures, result)
            run.log_metrics(_metrics(checks))
            run.set_tags({"alarm": ", ".join(alarms)})
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
    return f"{model_name()} version {version.version}", shown


def _metrics(checks: Sequence[Check]) -> dict[str, float]:
    """Return each figure under the check's name, with the ends of its interval, its sample, and 1 for an alarm."""
    metrics: dict[str, float] = {"alarms": sum(check.status == ALARM for check in checks)}
    for check in checks:
        metrics[f"{check.name}/n"] = check.n
        if check.figure is not None and check.low is not None and check.high is not None:
            metrics |= {f"{check.name}/figure": check.figure, f"{check.name}/alarm": float(check.status == ALARM)}
            metrics |= {f"{check.name}/low": check.low, f"{check.name}/high": check.high}
    return metrics
