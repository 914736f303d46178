"""The local store: made once whoever comes first, and never made anew in a file that has lost its runs."""

import multiprocessing
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from convrec import tracking
from convrec.errors import InputError, Unavailable
from convrec.tracking.store import LOCAL_FOLDER, store_error

DATABASE = LOCAL_FOLDER / "mlflow.db"


def _connect(folder: Path, barrier) -> None:
    os.chdir(folder)
    barrier.wait(60)
    assert tracking.connect() == "1"


@pytest.mark.slow
def test_processes_that_make_the_store_at_once_wait_for_each_other(project):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    processes = [context.Process(target=_connect, args=(project, barrier)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]


def test_a_store_that_was_half_made_is_made_again(project):
    (project / LOCAL_FOLDER).mkdir()
    (project / f"{DATABASE}.new").write_bytes(b"cut short by a kill")
    assert tracking.connect() == "1" and tracking.connect() == "1"
    assert [path.name for path in (project / LOCAL_FOLDER).iterdir()] == ["mlflow.db"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "lacks the tables alembic_version, experiments, "),
        (b"no database" * 100, r"is damaged \(file is not a database\)"),
    ],
)
def test_a_database_that_is_emptied_or_damaged_is_bad_input(project, content, reason):
    (project / LOCAL_FOLDER).mkdir()
    (project / DATABASE).write_bytes(content)
    for _ in range(2):
        with pytest.raises(InputError, match=f"mlflow.db {reason}.*; restore it from a backup, or remove it"):
            tracking.connect()
    assert (project / DATABASE).read_bytes() == content


def test_a_database_without_its_versions_is_not_filled_up(project, make_store):
    make_store(project)
    with closing(sqlite3.connect(project / DATABASE)) as database:
        database.execute("DROP TABLE registered_model_aliases")
    with pytest.raises(InputError, match="lacks the tables registered_model_aliases of MLflow"):
        tracking.connect()


def test_a_database_that_another_process_writes_is_unavailable(project, make_store, monkeypatch):
    make_store(project)
    monkeypatch.setattr(sqlite3, "connect", lambda *_, connect=sqlite3.connect, **more: connect(*_, timeout=0, **more))
    with closing(sqlite3.connect(project / DATABASE)) as database:
        database.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match="database is locked"):
            tracking.connect()


def test_a_database_without_a_folder_is_bad_input(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///nowhere/mlflow.db")
    with pytest.raises(InputError, match="nowhere/mlflow.db: No such file or directory"):
        tracking.connect()


def test_damage_that_is_found_later_is_bad_input(project):
    error = store_error(MlflowException("(sqlite3.DatabaseError) database disk image is malformed"), project)
    assert isinstance(error, InputError) and "mlflow.db' is damaged" in str(error)
