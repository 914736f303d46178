"""Runs: records are written to a journal first, and sent to MLflow in the background."""

import json
import logging
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import mlflow
import orjson
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from convrec.project.errors import Stopped
from convrec.project.paths import Paths
from convrec.project.redaction import redact, redact_all, redactor
from convrec.project.results import write_json
from convrec.registry.tracking.describe import (
    DESCRIPTION_TAG,
    PARENT_TAG,
    VERSIONS,
    data_tags,
    git_state,
    metric_values,
    param_texts,
    read_versions,
    table_facts,
    user_name,
    version_tags,
)
from convrec.registry.tracking.journal import FOLDER, About, Delivery, Journal, now_ms, upload_left
from convrec.registry.tracking.store import connect, shown_uri, store_error, tracking_uri

logger = logging.getLogger(__name__)

DECISION_TAG, VIEW = "decision", "results"  # of a pipeline's run; of the experiment
PARENT_VARIABLE = "CONVREC_PARENT_RUN_ID"  # set by the flow for the stages that it starts


class Run:
    """An open run; as the context of a block, it ends with it as finished, failed, or killed.

    Recording never waits for the tracking server; `close` waits for a limited time.
    """

    def __init__(self, about: About, root: Path = Path()):
        self.run_id = about.run_id
        self._journal = Journal((root / FOLDER).resolve(), about)
        self._delivery = Delivery(self._journal.path, tracking_uri(root))
        self._delivery.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        is_killed = isinstance(error, KeyboardInterrupt | Stopped)
        self.close("KILLED" if is_killed else "FAILED" if error else "FINISHED")

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        """Record metrics at a step; `@` in a name, which MLflow does not allow, becomes `_at_`."""
        floats = {name.replace("@", "_at_"): float(value) for name, value in metrics.items()}
        values = {name: value if math.isfinite(value) else str(value) for name, value in floats.items()}
        if values:
            self._journal.append("metrics", step=int(step), metrics=values)

    def log_params(self, params: dict[str, Any]) -> None:
        """Record parameters; nested ones get dotted names."""
        self._journal.append("params", params=param_texts(params))

    def set_tags(self, tags: dict[str, str]) -> None:
        """Record tags; an existing tag of the same name is replaced."""
        self._journal.append("tags", tags=tags)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file as it is now."""
        self._journal.append_file(path, f"{folder}/{path.name}" if folder else path.name)

    def log_text(self, content: str | dict[str, Any], path: str) -> None:
        """Record a text, or a mapping as JSON, as an artifact."""
        clean = redact_all(content, redactor())
        if not isinstance(clean, str):
            clean = orjson.dumps(clean, option=orjson.OPT_INDENT_2).decode()
        self._journal.append_file(clean.encode(), path)

    def log_results(
        self, stage: str, headlines: dict[str, Any], details: dict[str, Any], paths: Paths, prefix: str = ""
    ) -> None:
        """Write `metrics/STAGE.json` to compare runs by, and `results/STAGE.json` with all that it measured.

        The headlines become metrics, below `prefix`; the details become an artifact.
        """
        write_json(paths.metrics(stage), headlines)
        write_json(paths.results(stage), details)
        self.log_metrics(metric_values(headlines, prefix))
        self.log_artifact(paths.results(stage))

    def log_versions(self, files: dict[str, bytes]) -> None:
        """Record the files of `read_versions`."""
        for name, content in files.items():
            self._journal.append_file(content, f"{VERSIONS}/{name}")

    def log_dataset(self, path: Path, name: str) -> None:
        """Record a Parquet file as a dataset, with its DVC hash; its profile has the number of rows and the dates."""
        facts = table_facts(path)
        dataset = {"name": name, "digest": facts["md5"], "source_type": "local"}
        dataset["source"] = orjson.dumps({"uri": str(path)}).decode()
        dataset["profile"] = orjson.dumps({"num_rows": facts["rows"], "dates": facts["dates"]}).decode()
        self._journal.append("dataset", context=name, dataset=dataset)

    def close(self, status: str | None = None) -> None:
        """End the run with a status, if one is given; wait until everything is sent, for a limited time."""
        if status is not None:
            self._journal.append("status", status=status)
        if not self._delivery.finish():
            logger.warning(
                "not all records could be sent: the rest is buffered in %s, and is sent when the next run starts, or "
                "by `convrec tracking sync`",
                self._journal.path,
            )
        self._journal.close(release=not self._delivery.is_alive())  # no second sender beside a slow one


class SilentRun(Run):
    """The run of the other processes of a launch: it records nothing."""

    def __init__(self) -> None:
        pass

    def _ignore(self, *_: Any, **__: Any) -> None: ...

    log_metrics = log_params = set_tags = log_artifact = log_text = log_versions = log_dataset = close = _ignore


def open_run(name: str, tags: dict[str, str], params: dict[str, Any] | None = None, parent: str | None = None) -> Run:
    """Create a run on the server, the only call that waits for it, and record parameters and versions.

    The stage `data` gets the tags of its data at its end. The journals of processes that ended are sent in the
    background, and their runs end as killed. Raises as `connect` does.
    """
    experiment, root, started, files = connect(), Path().resolve(), now_ms(), read_versions()
    threading.Thread(target=_report_left, args=[root], name="convrec tracking upload", daemon=True).start()
    made_from = git_state() | version_tags(files) | ({} if tags.get("stage") == "data" else data_tags(Paths()))
    all_tags = {"mlflow.user": user_name(), **made_from, **tags, **({PARENT_TAG: parent} if parent else {})}
    try:
        client = mlflow.MlflowClient(tracking_uri())
        created = client.create_run(experiment, started, redact_all(all_tags, redactor()), redact(name))
    except MlflowException as error:
        raise store_error(error) from None
    run = Run(About(created.info.run_id, redact(name), shown_uri(), started), root)
    if address := shown_address(f"experiments/{experiment}/runs/{run.run_id}"):
        logger.info("recorded in %s", address)
    if params:
        run.log_params(params)
    run.log_versions(files)
    return run


def _report_left(root: Path) -> None:
    for text, _ in upload_left(root):
        logger.info("journal of an earlier process: %s", text)


@contextmanager
def stage_run(stage: str, params: dict[str, Any], tags: dict[str, str], parent: str | None = None) -> Iterator[Run]:
    """Open the run of one stage, nested under `parent`, or under the pipeline's run if a flow started the stage.

    The run records the versions of data and parameters at its start and system metrics until its end, and fails if the
    stage fails. Raises `Unavailable` or `InputError`, as `connect` does, before any work.
    """
    run = open_run(stage, {"stage": stage, **tags}, params, parent or os.environ.get(PARENT_VARIABLE))
    logging.getLogger(SystemMetricsMonitor.__module__).setLevel(logging.WARNING)
    with run:
        monitor = SystemMetricsMonitor(run.run_id, tracking_uri=tracking_uri())
        monitor.start()  # a thread, which stops if the server is lost
        try:
            yield run
            if stage == "data":
                run.set_tags(data_tags(Paths()))
        finally:
            monitor.finish()


def end_pipeline_run(
    run: Run, paths: Paths, status: str, whole: bool = True, summary: str = "", decision: str = ""
) -> None:
    """Close the parent run with the status FINISHED, FAILED or KILLED.

    It records the versions at its end, the status of its `decision` about a promotion, and the Markdown `summary`,
    which MLflow shows as the run's description. A finished run of the `whole` graph also gets the test metrics and the
    run's report with the decision.
    """
    files = read_versions(paths.root)
    try:
        run.log_versions(files)
        own = {name: text for name, text in ((DESCRIPTION_TAG, summary), (DECISION_TAG, decision)) if text}
        run.set_tags({**version_tags(files), **data_tags(paths), **own})
        if status == "FINISHED" and whole:
            run.log_metrics(metric_values(orjson.loads(paths.metrics("evaluate").read_bytes()), "test/"))
            for name in ("catalog", "train", "validation", "test"):
                run.log_dataset(paths.catalog if name == "catalog" else paths.split(name), name)
            run.log_artifact(paths.results("evaluate"))
            run.log_artifact(paths.decided_report)
    except BaseException:
        status = "FAILED"
        raise
    finally:
        run.close(status)


def runs_page(widest: int) -> str:
    """Return the page of all runs in MLflow, with columns for model, NDCG at the widest cutoff, and decision.

    The columns are saved as the experiment's view `results`, which MLflow's menu *Views* has, too. Raises as `connect`
    does.
    """
    experiment = connect()
    columns = ["tags.`model`", f"metrics.`test/ndcg_at_{widest}/rank_grpo`", f"tags.`{DECISION_TAG}`"]
    view = {"name": VIEW, "createdAt": 0, "state": json.dumps({"selectedColumns": columns})}
    client = mlflow.MlflowClient(tracking_uri())
    with suppress(MlflowException):  # the page opens without it, too
        client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{VIEW}", json.dumps(view))
    return f"experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"


def run_address(run_id: str) -> str | None:
    """Return the web address of a run; None for a local store, which `make ui` shows, or if the server is down."""
    try:
        experiment = mlflow.MlflowClient(tracking_uri()).get_run(run_id).info.experiment_id
    except MlflowException:
        return None
    return shown_address(f"experiments/{experiment}/runs/{run_id}")


def shown_address(page: str) -> str | None:
    """Return the web address of a page of the tracking server; None for a local store."""
    uri = shown_uri()
    return f"{uri.rstrip('/')}/#/{page}" if uri.startswith("http") else None
