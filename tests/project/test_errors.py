"""Exit statuses, and what the errors of libraries say about the machine."""

import errno
import sqlite3
from pathlib import Path

import pytest
from dvc.lock import LockError

from convrec.classical.embedding import SentenceEmbedder
from convrec.project.errors import InputError, NoSpace, Stopped, Unavailable, reported_error


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "models/sft"), NoSpace),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), NoSpace),
        (_caused(ValueError("x"), OSError(errno.ENOSPC, "No space left on device")), NoSpace),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), Unavailable),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), None),
        (RuntimeError("API request to endpoint /api failed with error code 503 != 200"), Unavailable),
        (OSError(errno.ECONNREFUSED, "Connection refused"), Unavailable),
        (OSError(errno.EACCES, "Permission denied", "reports"), InputError),
        (OSError(errno.ENOENT, "No such file or directory", "reports/x"), None),
        (LockError("Unable to acquire lock. Most likely another DVC process is running"), Unavailable),
        (sqlite3.DatabaseError("file is not a database"), InputError),
        (sqlite3.OperationalError("database or disk is full"), NoSpace),
        (sqlite3.OperationalError("database is locked"), None),
    ],
)
def test_what_the_surroundings_do_is_told_from_defects(error, kind):
    found = reported_error(error)
    assert type(found) is (kind or type(None)) and "\n" not in str(found)


def test_each_kind_has_a_status_of_its_own():
    kinds = (InputError, NoSpace, Unavailable, Stopped)
    assert [reported_error(kind("x")).status for kind in kinds] == [2, 74, 75, 143]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["data", "sample", "file/folder"],
            "convrec data sample: file/folder: Not a directory; choose another path, or change that file or its perm",
        ),
        (["registry", "list"], "convrec registry list: MLFLOW_TRACKING_URI has a user; leave it out"),
        (["promote", "--version", "x"], 'Invalid value "x" for --version. Give the number of a version, as'),
        (["score", "--predictions", "x", "--list-length", "9" * 5000], f'--list-length: unable to convert "{"9" * 40}'),
        (["experiment", "start", "--challenger=2", "--share=7"], 'Invalid value "7.0" for --share. Must be <= 1.'),
        (["recommend", "x", "--model", ""], "convrec recommend: --model : not a model's folder"),
        (["recommend", "x", "--model", "x" * 5000], "xx: File name too long; give another path"),
    ],
)
def test_a_mistake_is_told_in_one_line(here, monkeypatch, cli, command, message):
    Path("file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@[::1")
    status, _, shown = cli(*command)
    assert status == 2 and message in shown and shown.count("\n") == 1 and "secret" not in shown and len(shown) < 800


def test_an_embedder_without_a_name_is_told():
    with pytest.raises(InputError, match="embedder.name is empty"):
        SentenceEmbedder("")
