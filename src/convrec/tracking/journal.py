"""What runs record, on disk before it is sent: one folder a run, held by a lock while its process lives.

`records.jsonl` has a line for each record, in order; `files/` has copies of artifacts; `position.json` tells up to
where each of the two lanes was sent. A process that is killed leaves a journal that another can send.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from convrec.files.atomic import write_bytes
from convrec.tracking.redaction import redact_all, redactor

logger = logging.getLogger(__name__)

FOLDER = Path("runs", "journal")  # below the project's folder
REFUSED = "refused.jsonl"
_RECORDS, _POSITION, _ABOUT, _LOCK, _FILES = "records.jsonl", "position.json", "run.json", "lock", "files"
_ARTIFACT = b'{"kind":"artifact"'
TORN = "torn"
# What a record of each kind holds, beside `kind` and `at`.
_FIELDS: dict[str, dict[str, type]] = {
    "metrics": {"metrics": dict, "step": int},
    "params": {"params": dict},
    "tags": {"tags": dict},
    "dataset": {"dataset": dict, "context": str},
    "status": {"status": str},
    "artifact": {"file": str, "path": str},
}
_HALF_MADE = 60  # seconds after which a journal that has no name yet is nobody's

Lane = Literal["records", "artifacts"]
LANES: tuple[Lane, ...] = ("records", "artifacts")


@dataclass(frozen=True)
class About:
    """Which run a journal is of."""

    run_id: str
    name: str
    tracking_uri: str  # without credentials
    owner: bool  # whether the end of this journal is the end of the run
    started: int  # milliseconds since 1970


def _record(line: bytes) -> dict[str, Any]:
    """Return the record of a line; one that was cut short, or lacks a field of its kind, has the kind `TORN`."""
    with suppress(orjson.JSONDecodeError):
        record = orjson.loads(line)
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            fields = {"at": int, **_FIELDS.get(record["kind"], {})}
            wrong = [name for name, kind in fields.items() if not isinstance(record.get(name), kind)]
            if not wrong:
                return record
            return {"kind": TORN, "wrong": wrong, "line": line.decode(errors="replace")}
    return {"kind": TORN, "line": line.decode(errors="replace")}


def now_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def _locked(path: Path) -> int | None:
    """Return the descriptor of a file that this process now holds alone; None where another one does, or none is."""
    try:
        descriptor = os.open(path, os.O_RDWR)
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


class Journal:
    """The journal of one run, opened by `create` or `adopt`, and locked until `release` or `remove`."""

    def __init__(self, path: Path, about: About, lock: int):
        self.path, self.about = path, about
        self._lock: int | None = lock
        self._mutex = threading.Lock()
        self._redact = redactor()
        self._stream: int | None = None
        self._torn = self._is_full = False
        self._files = 0
        self._positions: dict[str, int] = dict.fromkeys(LANES, 0)
        self.is_position_lost = False
        try:
            self._positions |= orjson.loads((path / _POSITION).read_bytes())
        except FileNotFoundError:
            pass
        except (TypeError, ValueError):  # a power failure may empty it; sending all again changes nothing
            self.is_position_lost = True

    @classmethod
    def create(cls, folder: Path, about: About) -> "Journal":
        """Return a new journal below the folder; it gets its name once it is whole and locked."""
        folder.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        (fresh / _LOCK).touch()
        lock = _locked(fresh / _LOCK)
        assert lock is not None  # nobody else looks into it yet
        (fresh / _FILES).mkdir()
        (fresh / _RECORDS).touch()
        (fresh / _ABOUT).write_bytes(orjson.dumps(asdict(about)))
        try:
            path = fresh.rename(folder / about.run_id)
        except OSError:  # there is one: another process records into the same run
            path = fresh.rename(folder / f"{about.run_id}.{fresh.name.removeprefix('.new-')}")
        return cls(path, about, lock)

    @classmethod
    def adopt(cls, path: Path) -> "Journal | None":
        """Return the journal that a process left; None where that process lives, or another one sends it."""
        lock = _locked(path / _LOCK)
        if lock is None:
            return None
        try:
            return cls(path, read_about(path), lock)
        except BaseException:
            os.close(lock)
            raise

    def append(self, kind: str, at: int | None = None, **fields: Any) -> None:
        """Write one record, redacted, by one call of the system; a full disk is told and stops nothing."""
        record = {"kind": kind, "at": at or now_ms(), **redact_all(fields, self._redact)}
        line = orjson.dumps(record) + b"\n"
        with self._mutex:
            try:
                if self._stream is None:
                    self._stream = os.open(self.path / _RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                # What a full disk cut short is ended first, so that it takes no other record with it.
                line = b"\n" + line if self._torn else line
                self._torn = os.write(self._stream, line) < len(line)
                if self._torn:
                    raise OSError("the disk is full")
                self._is_full = False
            except OSError as error:
                if not self._is_full:  # told once
                    logger.error("records (%s) cannot be written to %s (%s)", kind, self.path, error)
                self._is_full = True

    def append_file(self, source: Path | bytes, path: str) -> None:
        """Copy a file, which may change afterwards, and record it as the artifact `path`."""
        with self._mutex:
            self._files += 1
            name = f"{self._files:06d}"  # not its own name: DVC would read a copy of dvc.yaml
        try:
            if isinstance(source, bytes):
                (self.path / _FILES / name).write_bytes(source)
            else:
                shutil.copyfile(source, self.path / _FILES / name)
        except OSError as error:
            logger.error("%s could not be copied to %s (%s); it is not recorded", source, self.path, error)
            return
        self.append("artifact", file=name, path=path)

    def file(self, record: dict[str, Any]) -> Path:
        """Return where the copy of an artifact is."""
        return self.path / _FILES / Path(record["file"]).name

    def unsent(self, lane: Lane) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the records of a lane that were not sent yet, each with the position after it.

        A last line that was cut short is none; one amid others, or one that lacks a field, has the kind `TORN`.
        """
        is_first = True
        for line, position in self._lines(self._positions[lane]):
            if line.startswith(_ARTIFACT) != (lane == "artifacts"):
                if is_first:  # what is of the other lane alone is not read again
                    self._positions[lane] = position
                continue
            is_first = False
            yield _record(line), position

    def _lines(self, position: int) -> Iterator[tuple[bytes, int]]:
        with (self.path / _RECORDS).open("rb") as stream:
            stream.seek(position)
            for line in stream:
                position += len(line)
                if line.endswith(b"\n") and line != b"\n":
                    yield line, position

    def last_status(self) -> tuple[str | None, int]:
        """Return the recorded final status of the run, None without one, and the time of the last record."""
        status, at = None, self.about.started
        for line, _ in self._lines(0):
            record = _record(line)
            status, at = record.get("status", status), record.get("at", at)
        return status, at

    def mark_sent(self, lane: Lane, position: int) -> None:
        """Remember, whole or not at all, that a lane was sent up to this position."""
        self._positions[lane] = position
        write_bytes(self.path / _POSITION, orjson.dumps(self._positions))

    def refuse(self, record: dict[str, Any], reason: str) -> None:
        """Set a record aside that cannot be sent, with the reason; an artifact keeps its copy."""
        folder = self.path.parent
        refused = {"run_id": self.about.run_id, "reason": self._redact(reason), "record": record}
        if record.get("kind") == "artifact" and self.file(record).is_file():
            kept = folder / "refused" / self.path.name / record["file"]
            kept.parent.mkdir(parents=True, exist_ok=True)
            self.file(record).replace(kept)
            refused["file"] = kept.relative_to(folder).as_posix()
        with (folder / REFUSED).open("ab", buffering=0) as stream:
            stream.write(orjson.dumps(refused) + b"\n")
        logger.warning(
            "a record of run %s was refused, and is kept in %s: %s",
            self.about.run_id,
            folder / REFUSED,
            refused["reason"],
        )

    def release(self) -> None:
        """Give the journal up; another process may send it."""
        with self._mutex:
            for descriptor in (self._stream, self._lock):
                if descriptor is not None:
                    os.close(descriptor)
            self._stream = self._lock = None

    def remove(self) -> None:
        """Remove a journal that was sent, in one step for those who look for journals."""
        gone = self.path.rename(self.path.with_name(f".sent-{self.path.name}"))
        shutil.rmtree(gone, ignore_errors=True)
        self.release()


def read_about(path: Path) -> About:
    """Return which run a journal is of."""
    return About(**orjson.loads((path / _ABOUT).read_bytes()))


def left_journals(folder: Path) -> list[Path]:
    """Return the journals below the folder, the oldest first, those of living processes too.

    One that does not tell its run is left out, with a warning. What is left of journals that were half made or half
    removed by a process that was killed goes away.
    """
    for path in folder.glob(".*-*"):
        with suppress(FileNotFoundError, NotADirectoryError):  # named or removed meanwhile; or no folder
            _remove_remains(path)
    found: dict[Path, int] = {}
    for path in folder.glob("[!.]*"):
        try:
            found[path] = read_about(path).started
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, TypeError, ValueError) as error:
            refused = "%s cannot be read (%s), so its journal is not sent; remove the folder to give its records up"
            logger.warning(refused, path / _ABOUT, error)
    return sorted(found, key=found.__getitem__)


def _remove_remains(path: Path) -> None:
    if path.name.startswith(".new-") and time.time() - path.stat().st_mtime < _HALF_MADE:
        return
    lock = _locked(path / _LOCK)
    if lock is not None or (path.name.startswith(".sent-") and not (path / _LOCK).exists()):
        shutil.rmtree(path, ignore_errors=True)
    if lock is not None:
        os.close(lock)
