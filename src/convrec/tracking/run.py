"""Runs: records are written to a journal first, and sent to the tracking server in the background."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import orjson
import pandas as pd
from mlflow.exceptions import MlflowException

from convrec.errors import Stopped
from convrec.files.atomic import write_bytes
from convrec.files.redaction import redact, redact_all, redactor
from convrec.paths import Paths
from convrec.tracking import journal as journals
from convrec.tracking import versions
from convrec.tracking.delivery import Sender, replay_left
from convrec.tracking.describe import (
    DATA_TAGS,
    DESCRIPTION_TAG,
    PARENT_TAG,
    data_tags,
    file_md5,
    git_state,
    metric_values,
    param_texts,
    tag_texts,
    user_tag,
)
from convrec.tracking.journal import About, Journal
from convrec.tracking.store import client_uri, connect, shown_uri, store_error
from convrec.tracking.system import system_metrics

logger = logging.getLogger(__name__)

PARENT_VARIABLE = "CONVREC_PARENT_RUN_ID"  # set by the flow for the stages that it starts
_DATE_COLUMNS = ("prompt_id", "date", "title", "year")


class Run:
    """An open run. Recording never waits for the tracking server; `close` waits for a limited time."""

    def __init__(self, about: About, root: Path = Path()):
        self.run_id = about.run_id
        self._journal = Journal.create((root / journals.FOLDER).resolve(), about)
        self._sender = Sender(self._journal, client_uri(root))
        self._sender.start()

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        """Record metrics at a step; `@` in a name, which MLflow does not allow, becomes `_at_`."""
        values = {name.replace("@", "_at_"): _number(value) for name, value in metrics.items()}
        if values:
            self._journal.append("metrics", step=int(step), metrics=values)

    def log_params(self, params: dict[str, Any]) -> None:
        """Record parameters; nested ones get dotted names."""
        self._journal.append("params", params=param_texts(params))

    def set_tags(self, tags: dict[str, str]) -> None:
        """Record tags; an existing tag of the same name is replaced."""
        self._journal.append("tags", tags=tag_texts(tags))

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file as it is now."""
        self._journal.append_file(path, f"{folder}/{path.name}" if folder else path.name)

    def log_text(self, content: str | dict[str, Any], path: str) -> None:
        """Record a text, or a mapping as JSON, as an artifact."""
        clean = redact_all(content, redactor())
        if not isinstance(clean, str):
            clean = orjson.dumps(clean, option=orjson.OPT_INDENT_2).decode()
        self._journal.append_file(clean.encode(), path)

    def log_versions(self, files: dict[str, bytes]) -> None:
        """Record the files of `tracking.versions.read_versions`."""
        for name, content in files.items():
            self._journal.append_file(content, f"{versions.FOLDER}/{name}")

    def log_dataset(self, path: Path, name: str) -> None:
        """Record a Parquet file as a dataset, with its DVC hash; its profile has the number of rows and the dates."""
        frame, digest = pd.read_parquet(path), file_md5(path)
        scalars = frame[[column for column in frame.columns if column in _DATE_COLUMNS]]
        with warnings.catch_warnings():  # about integer columns and the path's type: harmless here
            warnings.simplefilter("ignore")
            source = mlflow.data.pandas_dataset.from_pandas(scalars, source=str(path), name=name, digest=digest)
            entity = source._to_mlflow_entity()
        profile = orjson.loads(entity.profile or "{}")
        dates = frame["date"] if "date" in frame else pd.Series(dtype=str)
        if dates.astype(bool).any():
            profile["dates"] = f"{dates.min()} to {dates.max()}"
        fields = ("name", "digest", "source_type", "source", "schema")
        dataset = {field: getattr(entity, field) for field in fields} | {"profile": orjson.dumps(profile).decode()}
        self._journal.append("dataset", context=name, dataset=dataset)

    def close(self, status: str | None = None) -> None:
        """End the run with a status, if one is given; wait until everything is sent or the server stops responding."""
        if status is not None:
            self._journal.append("status", status=status)
        if not self._sender.finish():
            logger.warning(
                "not all records of run %s could be sent: the rest is buffered in %s, and is sent when the next run "
                "starts, or by `convrec tracking sync`",
                self.run_id,
                self._journal.path,
            )


class SilentRun(Run):
    """The run of the other processes of a launch: it records nothing."""

    def __init__(self) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None: ...

    def log_params(self, params: dict[str, Any]) -> None: ...

    def set_tags(self, tags: dict[str, str]) -> None: ...

    def log_artifact(self, path: Path, folder: str | None = None) -> None: ...

    def log_text(self, content: str | dict[str, Any], path: str) -> None: ...

    def log_versions(self, files: dict[str, bytes]) -> None: ...

    def log_dataset(self, path: Path, name: str) -> None: ...

    def close(self, status: str | None = None) -> None: ...


_open: dict[str, Run] = {}  # pipeline runs that this process started, by id


def _number(value: float) -> float | str:
    """Return a metric's value for JSON: NaN and infinities as text."""
    number = float(value)
    return number if number - number == 0 else str(number)


def _present_versions(root: Path = Path()) -> dict[str, bytes]:
    try:
        return versions.read_versions(root)
    except OSError as error:
        logger.warning("the versions of data and parameters are not recorded (%s)", error)
        return {}


def _replay_in_background(root: Path) -> None:
    """Send journals of earlier processes in a background thread."""

    def send() -> None:
        try:
            for replayed in replay_left(root):
                if not replayed.is_alive:
                    logger.info("journal of an earlier process: %s", replayed)
        except Exception as error:  # this must not stop the work; the journals stay
            logger.warning("journals of earlier processes could not be sent (%s)", redact(str(error)))

    threading.Thread(target=send, name="convrec tracking replay", daemon=True).start()


def _open_run(
    name: str, tags: dict[str, str], params: dict[str, Any], parent: str | None = None, root: Path = Path()
) -> Run:
    """Create a run on the server; this is the only call that waits for the server. Raises as `connect` does."""
    experiment = connect(root)
    root = root.resolve()
    _replay_in_background(root)
    started = journals.now_ms()
    all_tags = tag_texts({**user_tag(), **git_state(), **tags, **({PARENT_TAG: parent} if parent else {})})
    try:
        client = mlflow.MlflowClient(client_uri(root))
        created = client.create_run(experiment, started, redact_all(all_tags, redactor()), redact(name))
    except MlflowException as error:
        raise store_error(error, root) from None
    uri = shown_uri(root)
    if uri.startswith("http"):
        logger.info("recorded in %s/#/experiments/%s/runs/%s", uri.rstrip("/"), experiment, created.info.run_id)
    run = Run(About(created.info.run_id, redact(name), uri, True, started), root)
    if params:
        run.log_params(params)
    return run


def _attach(run_id: str, root: Path = Path()) -> Run:
    """Return a run that another process created and ends."""
    return Run(About(run_id, "", shown_uri(root), False, journals.now_ms()), root.resolve())


@contextmanager
def _ended(run: Run) -> Iterator[Run]:
    """Close the run at the end of the block as finished, failed, or killed."""
    try:
        yield run
    except (KeyboardInterrupt, Stopped):
        run.close("KILLED")
        raise
    except BaseException:
        run.close("FAILED")
        raise
    run.close("FINISHED")


@contextmanager
def stage_run(
    stage: str, params: dict[str, Any], tags: dict[str, str], run_file: Path | None = None, parent: str | None = None
) -> Iterator[Run]:
    """Open the run of one stage, nested under `parent`, or under the pipeline's run if a flow started the stage.

    The run's id is written to `run_file`, if given. The run records the versions of data and parameters at its start
    and system metrics until its end, and fails if the stage fails. Raises `Unavailable` or `InputError`, as `connect`
    does, before any work.
    """
    files = _present_versions()
    all_tags = {**versions.version_tags(files), "stage": stage, **tags}
    if stage == versions.DATA_STAGE:  # it makes new data; the present version is that of the run before
        all_tags = {key: value for key, value in all_tags.items() if key not in DATA_TAGS}
    run = _open_run(stage, all_tags, params, parent or os.environ.get(PARENT_VARIABLE))
    if run_file is not None:
        write_bytes(run_file, orjson.dumps({"run_id": run.run_id, "tracking_uri": shown_uri()}))
    with _ended(run), system_metrics(run.log_metrics):
        run.log_versions(files)
        yield run
        if stage == versions.DATA_STAGE:
            run.set_tags(data_tags(Paths()))


@contextmanager
def group_run(
    name: str, tags: dict[str, str], params: dict[str, Any] | None = None, parent: str | None = None
) -> Iterator[Run]:
    """Open a parent run: for a comparison, or for one of its algorithms over seeds."""
    files = _present_versions()
    run = _open_run(name, {**versions.version_tags(files), **tags}, params or {}, parent)
    with _ended(run):
        run.log_versions(files)
        yield run


def start_pipeline_run(name: str, tags: dict[str, str], params: dict[str, Any] | None = None) -> str:
    """Open the parent run of one pipeline run, with the time in its name, and return its id.

    `end_pipeline_run` ends it. If this process dies, the next process that finds its journal ends it as killed.
    """
    run = _open_run(f"{name} {time.strftime('%Y-%m-%d %H:%M')}", tags, params or {})
    _open[run.run_id] = run
    return run.run_id


def end_pipeline_run(run_id: str, paths: Paths, status: str, whole: bool = True, summary: str = "") -> None:
    """Close the parent run with the status FINISHED, FAILED or KILLED.

    It records the versions at its end, and the Markdown `summary`, which MLflow shows as the run's description. A
    finished run of the `whole` graph also gets the test metrics and the run's report.
    """
    run = _open.pop(run_id, None) or _attach(run_id, paths.root)
    try:
        _log_versions_and_tags(run, paths.root)
        run.set_tags({**data_tags(paths), **({DESCRIPTION_TAG: summary} if summary else {})})
        if status == "FINISHED" and whole:
            run.log_metrics(metric_values(orjson.loads(paths.metrics("evaluate").read_bytes()), "test/"))
            for name in ("catalog", "train", "validation", "test"):
                run.log_dataset(paths.catalog if name == "catalog" else paths.split(name), name)
            run.log_artifact(paths.results("evaluate"))
            run.log_artifact(paths.run_report)
    except BaseException:
        run.close("FAILED")
        raise
    run.close(status)


def run_address(run_id: str) -> str | None:
    """Return the web address of a run; None for a local store, which `make ui` shows, or if the server is down."""
    try:
        experiment = mlflow.MlflowClient(client_uri()).get_run(run_id).info.experiment_id
    except MlflowException:
        return None
    return shown_address(f"experiments/{experiment}/runs/{run_id}")


def shown_address(page: str) -> str | None:
    """Return the web address of a page of the tracking server; None for a local store."""
    uri = shown_uri()
    return f"{uri.rstrip('/')}/#/{page}" if uri.startswith("http") else None


def _log_versions_and_tags(run: Run, root: Path) -> None:
    files = _present_versions(root)
    run.log_versions(files)
    run.set_tags(versions.version_tags(files))


def record_versions(run_id: str, root: Path = Path()) -> None:
    """Record the current versions of data and parameters in an open run, as files and tags."""
    run = _attach(run_id, root)
    _log_versions_and_tags(run, root)
    run.close()


def log_text(run_id: str, content: str | dict[str, Any], path: str) -> None:
    """Record a text, or a mapping as JSON, as an artifact of an open run."""
    run = _open.get(run_id)
    if run is not None:
        run.log_text(content, path)
        return
    attached = _attach(run_id)
    attached.log_text(content, path)
    attached.close()
