"""The record of runs. With `registry`, the only module of the library that imports mlflow."""

import hashlib
import json
import logging
import os
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import mlflow
import pandas as pd
from mlflow.entities import DatasetInput, InputTag, Metric, RunStatus, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException

from convrec.errors import InputError
from convrec.paths import Paths
from convrec.versions import record as versions

logger = logging.getLogger(__name__)

LOCAL_FOLDER = Path("mlruns")
EXPERIMENT = "convrec"
PARENT_VARIABLE = "CONVREC_PARENT_RUN_ID"  # set by the flow for the stages that it starts
PARENT_TAG, COMMIT_TAG = "mlflow.parentRunId", "mlflow.source.git.commit"
_MAX_PENDING = 1000  # MLflow's limit of one batch


def tracking_uri(root: Path = Path()) -> str:
    """Return MLFLOW_TRACKING_URI, or the SQLite store below the project's folder."""
    default = f"sqlite:///{(root / LOCAL_FOLDER).resolve()}/mlflow.db"
    return os.environ.get("MLFLOW_TRACKING_URI") or default


def connect(root: Path = Path()) -> str:
    """Point MLflow at the store, and return the id of the experiment, made if need be.

    Raises `InputError` where the store cannot be reached.
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    uri = tracking_uri(root)
    local = uri.startswith("sqlite:")
    if local:
        (root / LOCAL_FOLDER).mkdir(exist_ok=True)
    mlflow.set_tracking_uri(uri)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    try:
        experiment = mlflow.get_experiment_by_name(name)
        if experiment is not None:
            return experiment.experiment_id
        location = (root / LOCAL_FOLDER / "artifacts").resolve().as_uri() if local else None
        return mlflow.create_experiment(name, artifact_location=location)
    except MlflowException as error:
        raise InputError(
            f"MLFLOW_TRACKING_URI = {uri!r} cannot be used ({str(error).splitlines()[0][:200]}); "
            "start the server, or unset the variable to record into the local store"
        ) from None


def git_state() -> dict[str, str]:
    """Return the commit and whether the work tree differs from it; nothing outside a git repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        dirty = bool(git("status", "--porcelain", "--untracked-files=no"))
        return {COMMIT_TAG: git("rev-parse", "HEAD"), "git_dirty": str(dirty).lower()}
    except (OSError, subprocess.CalledProcessError):
        return {}


def file_md5(path: Path) -> str:
    """Return the MD5 of a file: the hash under which DVC caches it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "md5").hexdigest()


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a flat mapping: nested keys are joined with dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) else {name: value})
    return flat


class Run:
    """One active MLflow run. Metrics are sent in batches, and a lost server does not stop the work."""

    def __init__(self, run_id: str):
        self.run_id = run_id
        self._client = mlflow.MlflowClient()
        self._pending: list[Metric] = []

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        """Record metrics; those that cannot be sent now are kept and sent with the next ones."""
        now = int(time.time() * 1000)
        self._pending += [Metric(name.replace("@", "_at_"), value, now, step) for name, value in metrics.items()]
        try:
            while self._pending:
                self._client.log_batch(self.run_id, metrics=self._pending[:_MAX_PENDING])
                del self._pending[:_MAX_PENDING]
        except MlflowException as error:
            logger.warning("%d metrics wait for the tracking server (%s)", len(self._pending), str(error)[:120])

    def log_params(self, params: dict[str, Any]) -> None:
        mlflow.log_params(flatten(params), run_id=self.run_id)

    def log_artifact(self, path: Path, folder: str | None = None) -> None:
        """Record a file; one that cannot be sent stays where it is, and the work goes on."""
        try:
            mlflow.log_artifact(str(path), folder, run_id=self.run_id)
        except Exception as error:  # an object store's library has exceptions of its own
            logger.warning("%s could not be sent to the tracking server (%s)", path, str(error)[:120])

    def log_versions(self, files: dict[str, bytes]) -> None:
        """Record the files of `convrec.versions`; where they cannot be sent, the work goes on."""
        if not files:
            return
        try:
            with tempfile.TemporaryDirectory() as folder:
                versions.write_versions(files, Path(folder))
                self._client.log_artifacts(self.run_id, folder, versions.FOLDER)
        except Exception as error:  # an object store's library has exceptions of its own
            logger.warning("%s/ could not be sent to the tracking server (%s)", versions.FOLDER, str(error)[:120])

    def set_tags(self, tags: dict[str, str]) -> None:
        for key, value in tags.items():
            self._client.set_tag(self.run_id, key, value)

    def log_dataset(self, path: Path, name: str) -> None:
        """Record a Parquet file as a dataset: its DVC hash, its number of rows, its dates."""
        frame = pd.read_parquet(path)
        scalars = frame[[c for c in frame.columns if c in ("prompt_id", "date", "title", "year")]]
        with warnings.catch_warnings():  # of integer columns, and of how a path might be read: neither matters here
            warnings.simplefilter("ignore")
            source = mlflow.data.pandas_dataset.from_pandas(scalars, source=str(path), name=name, digest=file_md5(path))
            entity = source._to_mlflow_entity()
        self._client.log_inputs(self.run_id, [DatasetInput(entity, [InputTag("mlflow.data.context", name)])])
        tags = {f"data.{name}.md5": file_md5(path), f"data.{name}.rows": str(len(frame))}
        dates = frame["date"] if "date" in frame else pd.Series(dtype=str)
        if dates.astype(bool).any():
            tags[f"data.{name}.dates"] = f"{dates.min()} to {dates.max()}"
        self.set_tags(tags)

    def close(self) -> None:
        """Send what still waits; say what was lost, if anything was."""
        self.log_metrics({})
        if self._pending:
            logger.error("%d metrics could not be sent to the tracking server", len(self._pending))


class SilentRun(Run):
    """The run of a process that is not the first of several: it records nothing."""

    def __init__(self) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None: ...

    def log_artifact(self, path: Path, folder: str | None = None) -> None: ...

    def log_dataset(self, path: Path, name: str) -> None: ...

    def close(self) -> None: ...


def _present_versions(root: Path = Path()) -> dict[str, bytes]:
    try:
        return versions.read_versions(root)
    except OSError as error:
        logger.warning("the versions of data and parameters are not recorded (%s)", error)
        return {}


def record_versions(run_id: str, root: Path = Path()) -> None:
    """Record the present versions of data and parameters in a run that is open already: files and tags."""
    files = _present_versions(root)
    run = Run(run_id)
    run.log_versions(files)
    try:
        tags = [RunTag(key, value) for key, value in versions.version_tags(files).items()]
        mlflow.MlflowClient().log_batch(run_id, tags=tags)
    except MlflowException as error:
        logger.warning("the versions' tags could not be sent to the tracking server (%s)", str(error)[:120])


@contextmanager
def stage_run(stage: str, params: dict[str, Any], tags: dict[str, str], run_file: Path) -> Iterator[Run]:
    """Open the run of one stage, nested under the pipeline's run if a flow started the stage.

    The run's id is written to `run_file`. The run holds the versions of data and parameters at its start, and fails
    with the stage.
    """
    experiment = connect()
    parent = os.environ.get(PARENT_VARIABLE)
    files = _present_versions()
    all_tags = {**git_state(), **versions.version_tags(files, stage), **tags, "stage": stage}
    if parent:
        all_tags[PARENT_TAG] = parent
    started = mlflow.start_run(experiment_id=experiment, run_name=stage, tags=all_tags)
    run = Run(started.info.run_id)
    run_file.parent.mkdir(parents=True, exist_ok=True)
    run_file.write_text(json.dumps({"run_id": run.run_id, "tracking_uri": tracking_uri()}), encoding="utf-8")
    try:
        run.log_params(params)
        run.log_versions(files)
        yield run
        run.close()
    except BaseException:
        mlflow.end_run(RunStatus.to_string(RunStatus.FAILED))
        raise
    mlflow.end_run()


def start_pipeline_run(name: str, tags: dict[str, str]) -> str:
    """Create the parent run of one pipeline run, and return its id."""
    experiment = connect()
    run = mlflow.MlflowClient().create_run(experiment, run_name=name, tags={**git_state(), **tags})
    return run.info.run_id


def end_pipeline_run(run_id: str, paths: Paths, status: str) -> None:
    """Close the parent run: FINISHED, FAILED or KILLED.

    It gets the versions at its end; a finished one the test metrics and the report of what it made.
    """
    client = mlflow.MlflowClient()
    record_versions(run_id, paths.root)
    if status == "FINISHED" and paths.metrics("evaluate").is_file():
        run = Run(run_id)
        metrics = flatten(json.loads(paths.metrics("evaluate").read_text(encoding="utf-8")))
        run.log_metrics({f"test/{name.replace('.', '/')}": value for name, value in metrics.items()})
        for name in ("catalog", "train", "validation", "test"):
            path = paths.catalog if name == "catalog" else paths.split(name)
            run.log_dataset(path, name)
        run.log_artifact(paths.report)
        run.close()
    client.set_terminated(run_id, status)


def run_address(run_id: str) -> str | None:
    """Return where a browser finds a run; None for a local store, which `make ui` shows."""
    parts = urlsplit(tracking_uri())
    if parts.scheme not in ("http", "https"):
        return None
    server = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    experiment = mlflow.MlflowClient().get_run(run_id).info.experiment_id
    return f"{server}/#/experiments/{experiment}/runs/{run_id}"


def log_text(run_id: str, content: str | dict[str, Any], path: str) -> None:
    """Record a text, or a mapping as JSON, as an artifact of a run that is open."""
    client = mlflow.MlflowClient()
    if isinstance(content, str):
        client.log_text(run_id, content, path)
    else:
        client.log_dict(run_id, content, path)


def end_comparison(run_id: str, artifacts: list[Path], failed: bool) -> None:
    """Close the parent run of a comparison, with its files and the versions that it was made from."""
    record_versions(run_id)
    run = Run(run_id)
    for path in artifacts:
        run.log_artifact(path)
    mlflow.MlflowClient().set_terminated(run_id, "FAILED" if failed else "FINISHED")


@dataclass(frozen=True)
class RecordedVersions:
    """The versions of a past run, as its record holds them."""

    run_id: str  # the pipeline's run, where the run that was asked for is one of its stages
    name: str
    commit: str | None
    dirty: bool  # tracked files differed from the commit
    files: dict[str, bytes]


def _recorded_files(client: mlflow.MlflowClient, run_id: str) -> dict[str, bytes]:
    """Return the files below versions/ of a run, as far as the store still holds them."""
    with tempfile.TemporaryDirectory() as target:
        try:
            folder = Path(client.download_artifacts(run_id, versions.FOLDER, target))
        except Exception as error:  # an object store's library has exceptions of its own
            logger.warning("%s/ of run %s could not be read (%s)", versions.FOLDER, run_id, str(error)[:120])
            return {}
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _find_run(client: mlflow.MlflowClient, run_id: str) -> MlflowRun | None:
    try:
        return client.get_run(run_id) if run_id else None
    except MlflowException:
        return None


def recorded_versions(run_id: str, root: Path = Path()) -> RecordedVersions:
    """Return the versions of a run: those of its pipeline's run where that one finished, else its own.

    Raises `InputError` where the store has no such run, or the run has no whole record of its versions.
    """
    connect(root)
    client = mlflow.MlflowClient()
    run = _find_run(client, run_id)
    if run is None:
        raise InputError(
            f"--run {run_id}: no such run in {tracking_uri(root)}; `make ui` and runs/STAGE.json show the ids, and "
            "MLFLOW_TRACKING_URI names another store"
        )
    parent = _find_run(client, run.data.tags.get(PARENT_TAG, ""))
    candidates = [parent, run] if parent is not None and parent.info.status == "FINISHED" else [run]
    recorded = [found for found in candidates if versions.DIGEST_TAG in found.data.tags]
    for found in recorded:
        files, tags = _recorded_files(client, found.info.run_id), found.data.tags
        if versions.digest(files) == tags[versions.DIGEST_TAG]:
            dirty = tags.get("git_dirty") == "true"
            return RecordedVersions(found.info.run_id, found.info.run_name, tags.get(COMMIT_TAG), dirty, files)
    if recorded:
        raise InputError(
            f"--run {run_id}: its {versions.FOLDER}/ in the artifact store is not what the run recorded; bring the "
            "store's files back, or name another run of the same data"
        )
    raise InputError(
        f"--run {run_id}: {run.info.run_name!r} recorded no versions of its data; name the run of a pipeline or of one "
        "of its stages, made since they are recorded"
    )
