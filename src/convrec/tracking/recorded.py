"""Reads the recorded versions of a past run."""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException

from convrec.errors import InputError
from convrec.tracking import versions
from convrec.tracking.describe import COMMIT_TAG, PARENT_TAG
from convrec.tracking.store import connect, shown_uri

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedVersions:
    """The recorded versions of a past run."""

    run_id: str  # that of the pipeline's run, if the requested run is one of its stages
    name: str
    commit: str | None
    dirty: bool  # tracked files differed from the commit
    files: dict[str, bytes]


def _recorded_files(client: mlflow.MlflowClient, run_id: str) -> dict[str, bytes]:
    """Return the files below versions/ of a run; an empty mapping if they cannot be read."""
    with tempfile.TemporaryDirectory() as target:
        try:
            folder = Path(client.download_artifacts(run_id, versions.FOLDER, target))
        except Exception as error:  # object stores' libraries have their own exceptions
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
    """Return the versions of a run: those of its pipeline's run if that finished, else its own.

    Raises `InputError` if the store has no such run, or the run has no complete record of its versions.
    """
    connect(root)
    client = mlflow.MlflowClient()
    run = _find_run(client, run_id)
    if run is None:
        raise InputError(
            f"--run {run_id}: no such run in {shown_uri(root)}; `make ui` and runs/STAGE.json show the ids, and "
            "MLFLOW_TRACKING_URI selects another store"
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
            f"--run {run_id}: its {versions.FOLDER}/ in the artifact store differs from what the run recorded; restore "
            "the store's files, or give another run with the same data"
        )
    raise InputError(
        f"--run {run_id}: {run.info.run_name!r} recorded no versions of its data; give the run of a pipeline or of one "
        "of its stages"
    )
