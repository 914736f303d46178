"""The journal of a run: a folder that buffers its records on disk until they are sent.

Beside what `files.journal` describes, `run.json` names the run, and `files/` has copies of artifacts. Artifacts and all
other records are two lanes, sent independently.
"""

import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from convrec.files.journal import DiskJournal, create_folder, delete_remains, lock_folder
from convrec.files.redaction import redact_all, redactor

logger = logging.getLogger(__name__)

FOLDER = Path("runs", "journal")  # below the project's folder
REFUSED = "refused.jsonl"
_ABOUT, _FILES = "run.json", "files"
_ARTIFACT = b'{"kind":"artifact"'
TORN = "torn"
# The fields of each kind of record, besides `kind` and `at`.
_FIELDS: dict[str, dict[str, type]] = {
    "metrics": {"metrics": dict, "step": int},
    "params": {"params": dict},
    "tags": {"tags": dict},
    "dataset": {"dataset": dict, "context": str},
    "status": {"status": str},
    "artifact": {"file": str, "path": str},
}

Lane = Literal["records", "artifacts"]
LANES: tuple[Lane, ...] = ("records", "artifacts")


@dataclass(frozen=True)
class About:
    """The run that a journal belongs to."""

    run_id: str
    name: str
    tracking_uri: str  # without credentials
    owner: bool  # whether the end of this journal is the end of the run
    started: int  # milliseconds since 1970


def _record(line: bytes) -> dict[str, Any]:
    """Return the record of a line. A line that was cut short, or lacks a field of its kind, has the kind `TORN`."""
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


class Journal(DiskJournal):
    """The journal of one run, opened by `create` or `adopt`, and locked until `release` or `remove`."""

    def __init__(self, path: Path, about: About, lock: int):
        super().__init__(path, lock, LANES)
        self.about = about
        self._redact = redactor()
        self._files = 0

    @classmethod
    def create(cls, folder: Path, about: About) -> "Journal":
        """Return a new journal below the folder; it gets its final name when it is complete and locked."""

        def fill(fresh: Path) -> None:
            (fresh / _FILES).mkdir()
            (fresh / _ABOUT).write_bytes(orjson.dumps(asdict(about)))

        path, lock = create_folder(folder, about.run_id, fill)
        return cls(path, about, lock)

    @classmethod
    def adopt(cls, path: Path) -> "Journal | None":
        """Return the journal that a process left; None if that process is alive, or another one is sending it."""
        lock = lock_folder(path)
        if lock is None:
            return None
        try:
            return cls(path, read_about(path), lock)
        except BaseException:
            os.close(lock)
            raise

    def append(self, kind: str, at: int | None = None, **fields: Any) -> None:
        """Write one redacted record with a single system call; if the disk is full, log an error and go on."""
        self.append_line({"kind": kind, "at": at or now_ms(), **redact_all(fields, self._redact)}, kind)

    def append_file(self, source: Path | bytes, path: str) -> None:
        """Copy a file as it is now, and record it as the artifact `path`."""
        with self._mutex:
            self._files += 1
            name = f"{self._files:06d}"  # not the file's name, because DVC would read a copy of dvc.yaml
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
        """Return the path of an artifact's copy."""
        return self.path / _FILES / Path(record["file"]).name

    def unsent(self, lane: Lane) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the unsent records of a lane, each with the position after it.

        A last line that was cut short is skipped. A damaged line elsewhere has the kind `TORN`.
        """
        is_first = True
        for line, position in self.lines(self._positions[lane]):
            if line.startswith(_ARTIFACT) != (lane == "artifacts"):
                if is_first:  # skip the other lane's records next time
                    self._positions[lane] = position
                continue
            is_first = False
            yield _record(line), position

    def last_status(self) -> tuple[str | None, int]:
        """Return the recorded final status of the run (None without one) and the time of the last record (ms)."""
        status, at = None, self.about.started
        for line, _ in self.lines(0):
            record = _record(line)
            status, at = record.get("status", status), record.get("at", at)
        return status, at

    def refuse(self, record: dict[str, Any], reason: str) -> None:
        """Set a rejected record aside with the reason; the copy of an artifact is kept."""
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
            "the tracking server rejected a record of run %s, which is kept in %s: %s",
            self.about.run_id,
            folder / REFUSED,
            refused["reason"],
        )


def read_about(path: Path) -> About:
    """Return the run that a journal belongs to."""
    return About(**orjson.loads((path / _ABOUT).read_bytes()))


def left_journals(folder: Path) -> list[Path]:
    """Return the journals below the folder, oldest first, including those of running processes.

    A journal whose run cannot be read is skipped with a warning. Remains of journals that a killed process was creating
    or removing are deleted.
    """
    delete_remains(folder)
    found: dict[Path, int] = {}
    for path in folder.glob("[!.]*"):
        try:
            found[path] = read_about(path).started
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, TypeError, ValueError) as error:
            refused = "%s cannot be read (%s), so its journal is not sent; remove the folder to discard its records"
            logger.warning(refused, path / _ABOUT, error)
    return sorted(found, key=found.__getitem__)
