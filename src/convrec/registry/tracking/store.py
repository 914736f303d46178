"""The store of runs: a tracking server, or an SQLite database below the project."""

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from convrec.project.errors import InputError, Unavailable, is_damaged
from convrec.project.redaction import redact

LOCAL_FOLDER = Path("mlruns")
EXPERIMENT = "convrec"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
USER_VARIABLE, PASSWORD_VARIABLE = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # the log shows where a run is recorded
}


def _local_database(root: Path) -> Path:
    return (root / LOCAL_FOLDER).resolve() / "mlflow.db"


def tracking_uri(root: Path = Path()) -> str:
    """Return MLFLOW_TRACKING_URI, or the SQLite store below the project's folder."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{_local_database(root)}"


def client_uri(root: Path = Path()) -> str:
    """Return the tracking URI for MLflow's clients, without the credentials of an http URI."""
    return _split_credentials(tracking_uri(root))[0]


def shown_uri(root: Path = Path()) -> str:
    """Return the tracking URI for logs and records, without any credentials."""
    return redact(client_uri(root))


def connect(root: Path = Path()) -> str:
    """Point MLflow at the store, and return the id of the experiment, which is created if necessary.

    Credentials in an http URI are moved to MLflow's variables, so that no message or record contains them. Raises
    `Unavailable` if the store does not answer, and `InputError` if it rejects this user, the URI is wrong, or the local
    database is damaged.
    """
    for variable, value in _DEFAULTS.items():
        os.environ.setdefault(variable, value)
    uri, credentials = _split_credentials(tracking_uri(root))
    os.environ.update(credentials)
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    location = None
    try:
        if uri.startswith("sqlite:"):
            (root / LOCAL_FOLDER).mkdir(exist_ok=True)
            location = (root / LOCAL_FOLDER / "artifacts").resolve().as_uri()
            if uri == f"sqlite:///{_local_database(root)}":
                ready_database(_local_database(root))
        mlflow.set_tracking_uri(uri)
        experiment = mlflow.get_experiment_by_name(name)
        if experiment is not None:
            return experiment.experiment_id
        try:
            return mlflow.create_experiment(name, artifact_location=location)
        except MlflowException:
            made = mlflow.get_experiment_by_name(name)  # by another process
            if made is None:
                raise
            return made.experiment_id
    except (MlflowException, SQLAlchemyError) as error:
        raise store_error(error, root) from None
    except ImportError as error:
        raise InputError(
            f"{URI_VARIABLE} = {shown_uri(root)!r} needs another package: {short_message(error)}; install it"
        ) from None


def _split_credentials(uri: str) -> tuple[str, dict[str, str]]:
    """Return an http URI without user and password, and both as values of MLflow's environment variables."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:  # the URI is not shown, because it may contain a password
        raise InputError(f"{URI_VARIABLE} is not a URI ({error}); give an http(s) server, or unset it") from None
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return uri, {}
    given, host = parts.netloc.rsplit("@", 1)
    user, _, password = given.partition(":")
    credentials = {USER_VARIABLE: unquote(user), PASSWORD_VARIABLE: unquote(password)}
    return urlunsplit(parts._replace(netloc=host)), credentials


def store_error(error: Exception, root: Path = Path()) -> InputError | Unavailable:
    """Return the error for a store that failed, with the remedy."""
    field, reason = f"{URI_VARIABLE} = {shown_uri(root)!r}", short_message(error)
    if is_damaged(error):
        return InputError(f"{field} is damaged ({reason}); restore it from a backup, or remove it to start a new one")
    status = error.get_http_status_code() if isinstance(error, MlflowException) else 500
    if status in (401, 403):
        return InputError(f"{field} rejects this user ({reason}); set {USER_VARIABLE} and {PASSWORD_VARIABLE}")
    if 400 <= status < 500 and status != 429:
        return InputError(f"{field} cannot be used ({reason}); give an http(s) server, or unset the variable")
    return Unavailable(
        f"{field} cannot be reached ({reason}); start the server, or unset the variable to record into the local store"
    )


def short_message(error: BaseException) -> str:
    """Return the first line of an error, at most 200 characters, without secrets."""
    return redact((str(error).splitlines() or [type(error).__name__])[0])[:200]


def ready_database(path: Path) -> None:
    """Create MLflow's database, if it does not exist: whole, and once if several processes do so at the same time.

    Raises `InputError` for an SQLite file without MLflow's tables. MLflow itself reports one that cannot be read.
    """
    if path.exists():
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            if ("registered_models",) not in database.execute("SELECT name FROM sqlite_master").fetchall():
                raise InputError(
                    f"{path} lacks MLflow's tables; restore it from a backup, or remove it to start a new one"
                )
        return
    with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as folder:
        new = Path(folder, path.name)
        mlflow.MlflowClient(f"sqlite:///{new}").search_experiments(max_results=1)
        try:
            path.hardlink_to(new)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            new.rename(path)


def history(run_id: str, root: Path = Path()) -> pd.DataFrame:
    """Return the curves of an MLflow run: one row for each step, one column for each metric with several steps.

    The index is `step`; a metric without a value at a step is NaN there. If a step was logged twice, as after resuming,
    its last value is used. System metrics are left out: their steps are samples. `root` is the project's folder. Raises
    `InputError` if the store has no such run, and `Unavailable` if it does not answer.
    """
    connect(root)
    client = mlflow.MlflowClient()
    try:
        names = sorted(name for name in client.get_run(run_id).data.metrics if not name.startswith("system/"))
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise store_error(error, root) from None
        raise InputError(
            f"run {run_id!r:.60}: no such run in {shown_uri(root)}; `make ui` and runs/STAGE.json show the ids"
        ) from None
    curves = {}
    for name in names:
        points = sorted(client.get_metric_history(run_id, name), key=lambda point: (point.step, point.timestamp))
        curves[name] = pd.Series({point.step: point.value for point in points}, dtype=float)
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    return pd.DataFrame(curves).sort_index().rename_axis("step")
