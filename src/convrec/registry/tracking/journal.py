"""The journal of a run: one JSON-lines file that buffers the run's records on disk until MLflow has them.

The first line of `RUN_ID.jsonl` names the run, and each further line is one record with its time. Beside it,
`RUN_ID.sent` holds how far it was sent, and `RUN_ID.files/` copies of artifacts. The run's process holds a lock on the
file, so other processes send only the journals of processes that ended.
"""

import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from convrec.project.atomic import write_bytes
from convrec.project.redaction import redact_all, redactor

logger = logging.getLogger(__name__)

FOLDER = Path("runs", "journal")  # below the project's folder
REFUSED = ".refused"  # replaces `.jsonl` in the name of a journal with records that MLflow refuses


@dataclass(frozen=True)
class About:
    """The run that a journal belongs to."""

    run_id: str
    name: str
    tracking_uri: str  # without credentials
    started: int  # milliseconds since 1970


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Journal:
    """The journal of one run, opened by `create` or `adopt`, and locked until `release` or `settle`."""

    def __init__(self, path: Path, about: About, descriptor: int):
        self.path, self.about = path, about
        self.sent = self.refused = 0  # bytes that were sent, and records that MLflow refused
        self._descriptor: int | None = descriptor
        self._mutex = threading.Lock()
        self._redact = redactor()
        self._copies = 0
        self._is_torn = self._is_full = False
        with suppress(FileNotFoundError, TypeError, ValueError):  # sending everything again is safe
            position = orjson.loads(path.with_suffix(".sent").read_bytes())
            self.sent, self.refused = position["sent"], position["refused"]

    @classmethod
    def create(cls, folder: Path, about: About) -> "Journal":
        """Return a new journal below the folder; it gets its name once it is locked and names its run."""
        folder.mkdir(parents=True, exist_ok=True)
        hidden = folder / f".{about.run_id}.jsonl"
        descriptor = os.open(hidden, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, orjson.dumps(asdict(about)) + b"\n")
        return cls(hidden.rename(folder / f"{about.run_id}.jsonl"), about, descriptor)

    @classmethod
    def adopt(cls, path: Path) -> "Journal | None":
        """Return the journal that a process left; None if that process is alive, or another one sends the journal.

        Raises `ValueError` if its first line is damaged, and `FileNotFoundError` if it was sent meanwhile.
        """
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise FileNotFoundError(path)
            journal = cls(path, read_about(path), descriptor)
            if os.pread(descriptor, 1, path.stat().st_size - 1) != b"\n":
                logger.warning("the last record of %s was cut short when its process ended; it is skipped", path)
            return journal
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise

    def append(self, kind: str, **fields: Any) -> None:
        """Write one redacted record with a single system call; if the disk is full, log an error once and go on."""
        line = orjson.dumps({"kind": kind, "at": now_ms(), **redact_all(fields, self._redact)}) + b"\n"
        with self._mutex:
            if self._descriptor is None:
                return
            line = b"\n" + line if self._is_torn else line  # ends a record that a full disk cut short
            try:
                self._is_torn = os.write(self._descriptor, line) < len(line)
                if self._is_torn:
                    raise OSError("the disk is full")
                self._is_full = False
            except OSError as error:
                if not self._is_full:
                    logger.error("records (%s) cannot be written to %s (%s)", kind, self.path, error)
                self._is_full = True

    def append_file(self, source: Path | bytes, path: str) -> None:
        """Copy a file as it is now, and record it as the artifact `path`."""
        with self._mutex:
            self._copies += 1
            name = f"{self._copies:06d}"  # not the file's name, because DVC would read a copy of dvc.yaml
        copy = self.copy_of(name)
        try:
            copy.parent.mkdir(exist_ok=True)
            if isinstance(source, bytes):
                copy.write_bytes(source)
            else:
                shutil.copyfile(source, copy)
        except OSError as error:
            logger.error("%s could not be copied to %s (%s); it is not recorded", path, copy, error)
            return
        self.append("artifact", path=path, file=name)

    def copy_of(self, name: str) -> Path:
        """Return the path of an artifact's copy; `name` is the field `file` of its record."""
        return self.path.with_suffix(".files") / Path(name).name

    def records(self, start: int) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the records from a position, 0 for all, each with the position after it.

        A last line that is not complete is skipped. A damaged line elsewhere has the kind `damaged`.
        """
        with self.path.open("rb") as stream:
            position = start or len(stream.readline())
            stream.seek(position)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                position += len(line)
                yield _record(line), position

    def mark(self, sent: int) -> None:
        """Store atomically how far the journal was sent, and how many records were refused."""
        if sent > self.sent:
            write_bytes(self.path.with_suffix(".sent"), orjson.dumps({"sent": sent, "refused": self.refused}))
            self.sent = sent

    def settle(self) -> None:
        """Remove a journal that was sent; one with refused records is kept as `RUN_ID.refused`."""
        if self.refused:
            self.path.rename(self.path.with_suffix(REFUSED))
        else:
            shutil.rmtree(self.path.with_suffix(".files"), ignore_errors=True)
            self.path.unlink()
        self.path.with_suffix(".sent").unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Release the lock, so that another process can send the journal."""
        with self._mutex:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = None
    return record if isinstance(record, dict) and isinstance(record.get("kind"), str) else {"kind": "damaged"}


def read_about(path: Path) -> About:
    """Return the run that a journal belongs to; raises `ValueError` if its first line is damaged."""
    with path.open("rb") as stream:
        try:
            return About(**orjson.loads(stream.readline()))
        except (TypeError, ValueError):
            raise ValueError(f"the first line of {path} does not name a run") from None


def left_journals(folder: Path) -> list[Path]:
    """Return the journals below the folder, including those of running processes."""
    return sorted(folder.glob("[!.]*.jsonl"))
