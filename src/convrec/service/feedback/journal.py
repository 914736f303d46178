"""Answers and events in a folder on disk, which buffers them until the database has them.

A lock is held while the writing process lives. `records.jsonl` has one line for each record, in order. `position.json`
holds the position up to which they were delivered. If a process is killed, another one can deliver its journal.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from convrec.project.atomic import write_bytes
from convrec.service.feedback.records import Answer, Event, new_answer_id

logger = logging.getLogger(__name__)

REFUSED = "refused.jsonl"
_MAX_REFUSED = 16 * 1024**2  # bytes; a client that sends nonsense must not fill the disk
_RECORDS, _POSITION, _LOCK = "records.jsonl", "position.json", "lock"
_HALF_MADE = 60  # seconds after which an unfinished journal counts as abandoned


@dataclass(frozen=True)
class DamagedLine:
    """A line of a journal that is no answer and no event. `reason` does not quote it: it may be of a deleted user."""

    reason: str


Record = Answer | Event | DamagedLine


@dataclass(frozen=True)
class _Line:
    """A line of a journal: an answer or an event. Fields of other releases are ignored."""

    answer: Answer | None = None
    event: Event | None = None


_LINE = TypeAdapter(_Line)


class FeedbackJournal:
    """The answers and events of one process, in order; this process has it locked until `release` or `remove`."""

    def __init__(self, path: Path, lock: int):
        self.path = path
        self._lock: int | None = lock
        self._mutex = threading.Lock()
        self._stream: int | None = None
        self._torn = self._is_full = False
        self._position = 0
        with suppress(TypeError, ValueError):  # delivering everything again is safe
            self._position = _position_of(path)

    @classmethod
    def create(cls, folder: Path) -> "FeedbackJournal":
        """Return a new journal below the folder, named once it is complete; the names of journals sort by time."""
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        (fresh / _LOCK).touch()
        lock = _lock(fresh)
        assert lock is not None  # no other process knows it yet
        (fresh / _RECORDS).touch()
        return cls(fresh.rename(folder / new_answer_id(datetime.now(UTC))), lock)

    @classmethod
    def adopt(cls, path: Path) -> "FeedbackJournal | None":
        """Return the journal that a process left; None if that process is alive, or another one delivers it."""
        lock = _lock(path)
        return None if lock is None else cls(path, lock)

    def append(self, record: Answer | Event) -> bool:
        """Write a record with a single system call; return False, and log it once, if the disk is full."""
        what = "answer" if isinstance(record, Answer) else "event"
        line = orjson.dumps({what: record}) + b"\n"
        with self._mutex:
            try:
                if self._stream is None:
                    self._stream = os.open(self.path / _RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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

    def unsent(self) -> Iterator[tuple[Record, int]]:
        """Yield the undelivered records that are there now, each with the position after it."""
        end = self.size()
        for line, position in _lines(self.path, self._position):
            if position > end:  # written meanwhile, perhaps an event that waits
                return
            yield _record(line), position

    def size(self) -> int:
        """Return the number of bytes of its records, delivered ones included."""
        return (self.path / _RECORDS).stat().st_size

    def mark_sent(self, position: int) -> None:
        """Store atomically that the records up to this position were delivered."""
        self._position = position
        write_bytes(self.path / _POSITION, orjson.dumps({"records": position}))

    def refuse(self, record: Record, reason: str) -> None:
        """Set aside what the database cannot take, with the reason; of an answer only its id."""
        kept = record if isinstance(record, Event) else {"answer_id": getattr(record, "answer_id", None)}
        path = self.path.parent / REFUSED
        with path.open("ab", buffering=0) as stream:
            if stream.tell() < _MAX_REFUSED:
                stream.write(orjson.dumps({"reason": reason, "record": kept}) + b"\n")

    def release(self) -> None:
        """Release the lock, so that another process can deliver the journal."""
        with self._mutex:
            for descriptor in (self._stream, self._lock):
                if descriptor is not None:
                    os.close(descriptor)
            self._stream = self._lock = None

    def remove(self) -> None:
        """Remove a journal that was delivered; the rename makes this atomic for other processes."""
        gone = self.path.rename(self.path.with_name(f".sent-{self.path.name}"))
        shutil.rmtree(gone, ignore_errors=True)
        self.release()


def journals(folder: Path) -> list[Path]:
    """Return the journals below a folder, oldest first; delete what a killed process was creating or removing."""
    for path in folder.glob(".*-*"):
        with suppress(FileNotFoundError, NotADirectoryError):  # renamed or removed by another process, or not a folder
            _delete_remains(path)
    return sorted(path for path in folder.glob("[!.]*") if (path / _RECORDS).exists())


def waiting(folder: Path) -> int:
    """Return the number of undelivered records in all journals below a folder, those of running services included."""
    number = 0
    for path in journals(folder):
        with suppress(FileNotFoundError, TypeError, ValueError):  # delivered and removed meanwhile, or damaged
            number += sum(1 for _ in _lines(path, _position_of(path)))
    return number


def _record(line: bytes) -> Record:
    try:
        found = _LINE.validate_json(line)
    except ValidationError:
        found = _Line()
    return found.answer or found.event or DamagedLine(f"a line of {len(line)} bytes is damaged")


def _lines(path: Path, position: int) -> Iterator[tuple[bytes, int]]:
    """Yield the lines from a position, each with the position after it; a last line that was cut is skipped."""
    with (path / _RECORDS).open("rb") as stream:
        stream.seek(position)
        for line in stream:
            position += len(line)
            if line.endswith(b"\n") and line != b"\n":
                yield line, position


def _position_of(path: Path) -> int:
    """Return the position that `mark_sent` stored; 0 without one.

    Raises `TypeError` or `ValueError` if the file is damaged: a power failure may have emptied it.
    """
    try:
        return int(dict(orjson.loads((path / _POSITION).read_bytes())).get("records", 0))
    except FileNotFoundError:
        return 0


def _lock(path: Path) -> int | None:
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


def _delete_remains(path: Path) -> None:
    if path.name.startswith(".new-") and time.time() - path.stat().st_mtime < _HALF_MADE:
        return
    lock = _lock(path)
    if lock is not None or (path.name.startswith(".sent-") and not (path / _LOCK).exists()):
        shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)
