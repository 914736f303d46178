"""The store of runs: a tracking server, or an SQLite database below the project."""

import logging
import os
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import unquote, urlsplit

import mlflow
from filelock import FileLock
from mlflow.exceptions import MlflowException
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from convrec.project.errors import InputError, NoSpace, Unavailable, is_damaged, outside_cause
from convrec.project.redaction import redact

logger = logging.getLogger(__name__)

LOCAL_FOLDER = Path("mlruns")
DATABASE, _ARTIFACTS = "mlflow.db", "artifacts"  # in the local folder
EXPERIMENT = "convrec"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
USER_VARIABLE, PASSWORD_VARIABLE = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the log shows where a run is recorded
}

_PLACES = {  # where MLflow's database has absolute paths
    "experiments": ("artifact_location",),
    "runs": ("artifact_uri",),
    "logged_models": ("artifact_location",),
    "model_versions": ("source", "storage_location"),
}


def tracking_uri(root: Path = Path()) -> str:
    """Return MLFLOW_TRACKING_URI, or the SQLite store below the project's folder."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{(root / LOCAL_FOLDER).resolve()}/{DATABASE}"


def shown_uri(root: Path = Path()) -> str:
    """Return the tracking URI for logs and records, without any credentials."""
    return redact(tracking_uri(root))


def connect(root: Path = Path()) -> str:
    """Point MLflow at the store, and return the id of the experiment, which is created if necessary.

    The database of a copied or moved project gets the paths of its own artifacts (`_settle`). Raises `Unavailable` if
    the store does not answer, `NoSpace` if its disk is full, and `InputError` if it rejects this user, the URI is wrong
    or has credentials, or the local database is damaged.
    """
    for variable, value in _DEFAULTS.items():
        os.environ.setdefault(variable, value)
    uri, name, location = tracking_uri(root), os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT), None
    if uri.startswith("http") and "@" in uri:
        # The URI is not shown: a password with @ or / in it is not recognized as one.
        raise InputError(f"{URI_VARIABLE} has a user; leave it out, and set {USER_VARIABLE} and {PASSWORD_VARIABLE}")
    try:
        if uri.startswith("sqlite:"):
            (root / LOCAL_FOLDER).mkdir(exist_ok=True)
            location = (root / LOCAL_FOLDER / _ARTIFACTS).resolve().as_uri()
        mlflow.set_tracking_uri(uri)
        # MLflow makes the tables of a new database at the first call; one process at a time can do so.
        with nullcontext() if location is None else FileLock(root / LOCAL_FOLDER / "mlflow.lock"):
            experiment = mlflow.get_experiment_by_name(name)
            if location is not None:
                _settle(uri, (root / LOCAL_FOLDER).resolve())
        if experiment is None:
            try:
                return mlflow.create_experiment(name, artifact_location=location)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = mlflow.set_experiment(name)  # of another process
        return experiment.experiment_id
    except (MlflowException, SQLAlchemyError) as error:
        raise store_error(error, root) from None
    except ImportError as error:
        raise InputError(
            f"{URI_VARIABLE} = {shown_uri(root)!r} needs another package: {short_message(error)}; install it"
        ) from None


def _settle(uri: str, own: Path) -> None:
    """Let a project's own database name the artifacts in its own folder, and log it if it named those of another one.

    MLflow keeps absolute paths: from a copied or moved project, it would go on writing into the former folder. A
    database elsewhere stays as it is, as several projects may share it.
    """
    engine = create_engine(uri, poolclass=NullPool)
    if Path(engine.url.database or "").resolve() != own / DATABASE:
        return
    with engine.begin() as database:
        locations = database.execute(text("SELECT artifact_location FROM experiments")).scalars().all()
        ours = [Path(unquote(urlsplit(one).path)) for one in locations if one and one.startswith("file:")]
        for former in {path.parent for path in ours if path.parts[-2:] == (str(LOCAL_FOLDER), _ARTIFACTS)} - {own}:
            for table, column in ((table, column) for table, columns in _PLACES.items() for column in columns):
                for old, new in ((f"{former.as_uri()}/", f"{own.as_uri()}/"), (f"{former}/", f"{own}/")):
                    values = {"old": old, "new": new, "length": len(old)}
                    renamed = f"UPDATE {table} SET {column} = :new || substr({column}, :length + 1)"
                    database.execute(text(f"{renamed} WHERE substr({column}, 1, :length) = :old"), values)
            logger.warning("the store was copied or moved from %s: its artifacts are in %s", former, own)


def store_error(error: Exception, root: Path = Path()) -> InputError | NoSpace | Unavailable:
    """Return the error for a store that failed, with the remedy."""
    field, reason = f"{URI_VARIABLE} = {shown_uri(root)!r}", short_message(error)
    if is_damaged(error):
        return InputError(f"{field} is damaged ({reason}); restore it from a backup, or remove it to start a new one")
    if isinstance(outside := outside_cause(error), NoSpace):
        return outside
    status = error.get_http_status_code() if isinstance(error, MlflowException) else 500
    if status == 401:
        return InputError(f"{field} rejects this user ({reason}); set {USER_VARIABLE} and {PASSWORD_VARIABLE}")
    if status == 403:  # MLflow's answer also for what does not exist
        return InputError(
            f"{field} denies access ({reason}); correct the name of what is asked for, or give the user of "
            f"{USER_VARIABLE} permission"
        )
    if 400 <= status < 500 and status != 429:
        return InputError(f"{field} cannot be used ({reason}); give an http(s) server, or unset the variable")
    return Unavailable(
        f"{field} cannot be reached ({reason}); start the server, or unset the variable to record into the local store"
    )


def short_message(error: BaseException) -> str:
    """Return the first line of an error, at most 200 characters, without secrets."""
    return redact((str(error).splitlines() or [type(error).__name__])[0])[:200]
