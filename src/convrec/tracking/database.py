"""The SQLite database of a local store: made by one process, and checked before MLflow opens it."""

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import mlflow
from sqlalchemy.engine import make_url

from convrec.errors import InputError, Unavailable

# Tables of every version of MLflow. Where one is missing, MLflow makes it anew, without the runs and versions in it.
_TABLES = {"alembic_version", "experiments", "runs", "params", "tags", "metrics", "latest_metrics"}
_TABLES |= {"registered_models", "model_versions", "registered_model_aliases"}


def ready_database(uri: str) -> None:
    """Make the database of a SQLite URI where there is none; processes that do so at once wait for each other.

    Raises `InputError` where the file is no database of MLflow, or its folder does not exist.
    """
    name = make_url(uri).database
    if name in (None, "", ":memory:"):
        return
    path = Path(str(name))
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; name a database in a folder that exists") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists():
            _check(path)
        else:
            _make(path)
    finally:
        os.close(folder)


def _make(path: Path) -> None:
    """Let MLflow make its tables beside the path first: what is killed meanwhile leaves nothing there."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    mlflow.MlflowClient(f"sqlite:///{new.absolute()}").search_experiments(max_results=1)
    new.rename(path)


def _check(path: Path) -> None:
    remedy = "restore it from a backup, or remove it to begin a new one without its runs and versions"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise Unavailable(f"{path}: {error}; start again once the other process is done") from None
        raise InputError(f"{path}: {error}; name another database, or change who may use it") from None
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is damaged ({error}); {remedy}") from None
    if missing := sorted(_TABLES - tables):
        raise InputError(f"{path} lacks the tables {', '.join(missing)} of MLflow; {remedy}")
