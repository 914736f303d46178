"""A folder that buffers records on disk until they are sent; `service/feedback` builds on it.

A lock is held while the writing process lives. `records.jsonl` has one line for each record, in order. `position.json`
holds the position up to which they were sent. If a process is killed, another one can send its journal.
"""

import fcntl
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from convrec.project.atomic import write_bytes

logger = logging.getLogger(__name__)

RECORDS = "records.jsonl"
_POSITION, _LOCK = "position.json", "lock"
_HALF_MADE = 60  # seconds after which an unfinished journal counts as abandoned


class DiskJournal:
    """A journal that this process has locked, until `release` or `remove`."""

    def __init__(self, path: Path, lock: int):
        self.path = path
        self._lock: int | None = lock
        self._mutex = threading.Lock()
        self._stream: int | None = None
        self._torn = self._is_full = False
        self._positions = {"records": 0}
        with suppress(TypeError, ValueError):  # sending everything again is safe
            self._positions |= positions_of(path)

    def append_line(self, record: Any, what: str) -> bool:
        """Write one record with a single system call; return whether it is stored whole.

        If the disk is full, log an error once that names the record by `what`.
        """
        line = orjson.dumps(record) + b"\n"
        with self._mutex:
            try:
                if self._stream is None:
                    self._stream = os.open(self.path / RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                # A newline ends a record that was cut short by a full disk, so that the next one stays readable.
                line = b"\n" + line if self._torn else line
                self._torn = os.write(self._stream, line) < len(line)
                if self._torn:
                    raise OSError("the disk is full")
                self._is_full = False
            except OSError as error:
                if not self._is_full:
                    logger.error("records (%s) cannot be written to %s (%s)", what, self.path, error)
                self._is_full = True
            return not self._is_full

    def lines(self, position: int) -> Iterator[tuple[bytes, int]]:
        """Yield the lines from a position, each with the position after it; a last line that was cut is skipped."""
        return lines_of(self.path, position)

    def mark_sent(self, lane: str, position: int) -> None:
        """Store atomically that the lane `records` was sent up to this position."""
        self._positions[lane] = position
        write_bytes(self.path / _POSITION, orjson.dumps(self._positions))

    def release(self) -> None:
        """Release the lock, so that another process can send the journal."""
        with self._mutex:
            for descriptor in (self._stream, self._lock):
                if descriptor is not None:
                    os.close(descriptor)
            self._stream = self._lock = None

    def remove(self) -> None:
        """Remove a journal that was sent; the rename makes this atomic for other processes."""
        gone = self.path.rename(self.path.with_name(f".sent-{self.path.name}"))
        shutil.rmtree(gone, ignore_errors=True)
        self.release()


def lines_of(path: Path, position: int) -> Iterator[tuple[bytes, int]]:
    """Yield the lines of a journal, locked or not (see `DiskJournal.lines`)."""
    with (path / RECORDS).open("rb") as stream:
        stream.seek(position)
        for line in stream:
            position += len(line)
            if line.endswith(b"\n") and line != b"\n":
                yield line, position


def positions_of(path: Path) -> dict[str, int]:
    """Return the position up to which the records of a journal were sent, as `mark_sent` stored it.

    Raises `TypeError` or `ValueError` if the file is damaged: a power failure may have emptied it.
    """
    try:
        return dict(orjson.loads((path / _POSITION).read_bytes()))
    except FileNotFoundError:
        return {}


def create_folder(folder: Path, name: str) -> tuple[Path, int]:
    """Return the path and the lock of a new journal; it gets its name once it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
    (fresh / _LOCK).touch()
    lock = lock_folder(fresh)
    assert lock is not None  # no other process knows it yet
    (fresh / RECORDS).touch()
    return fresh.rename(folder / name), lock


def lock_folder(path: Path) -> int | None:
    """Lock a journal and return the lock's descriptor; None if another process holds it or it does not exist."""
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # not removed since it was opened
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def delete_remains(folder: Path) -> None:
    """Delete the remains of journals that a killed process was creating or removing."""
    for path in folder.glob(".*-*"):
        with suppress(FileNotFoundError, NotADirectoryError):  # renamed or removed by another process, or not a folder
            _delete_remains(path)


def _delete_remains(path: Path) -> None:
    if path.name.startswith(".new-") and time.time() - path.stat().st_mtime < _HALF_MADE:
        return
    lock = lock_folder(path)
    if lock is not None or (path.name.startswith(".sent-") and not (path / _LOCK).exists()):
        shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)
