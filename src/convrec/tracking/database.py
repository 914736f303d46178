"""The SQLite database of a local store: created by one process, and checked before MLflow opens it."""

import fcntl
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import mlflow
from sqlalchemy.engine import make_url

from convrec.errors import InputError, Unavailable

# Tables that every version of MLflow has. If one is missing, MLflow creates it empty, without runs or versions.
_TABLES = {"alembic_version", "experiments", "runs", "params", "tags", "metrics", "latest_metrics"}
_TABLES |= {"registered_models", "model_versions", "registered_model_aliases"}


def ready_database(uri: str) -> None:
    """Create the database of a SQLite URI if it does not exist; concurrent processes wait for each other.

    Raises `InputError` if the file is not a database of MLflow, or its folder does not exist, and `Unavailable` if
    another process has locked it.
    """
    name = make_url(uri).database
    if name in (None, "", ":memory:"):
        return
    path = Path(str(name))
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a database in an existing folder") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if path.exists():
            _check(path)
        else:
            _make(path)
    finally:
        os.close(folder)


def _make(path: Path) -> None:
    """Create the tables in a temporary file first, so that an interrupted process leaves no partial database."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    mlflow.MlflowClient(f"sqlite:///{new.absolute()}").search_experiments(max_results=1)
    new.rename(path)


def _check(path: Path) -> None:
    remedy = "restore it from a backup, or remove it to start a new one without its runs and versions"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise Unavailable(f"{path}: {error}; start again when the other process is done") from None
        raise InputError(f"{path}: {error}; give another database, or change its permissions") from None
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path} is damaged ({error}); {remedy}") from None
    if missing := sorted(_TABLES - tables):
        raise InputError(f"{path} lacks the tables {', '.join(missing)} of MLflow; {remedy}")
