"""Answers and events as lines of a journal, which buffers them on disk until the database has them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError

from convrec.project.journal import (
    RECORDS,
    DiskJournal,
    create_folder,
    delete_remains,
    lines_of,
    lock_folder,
    positions_of,
)
from convrec.service.feedback.records import Answer, Event, new_answer_id

REFUSED = "refused.jsonl"
_MAX_REFUSED = 16 * 1024**2  # bytes; a client that sends nonsense must not fill the disk


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


class FeedbackJournal(DiskJournal):
    """The journal of one process: its answers and events, in order."""

    @classmethod
    def create(cls, folder: Path) -> "FeedbackJournal":
        """Return a new journal below the folder; the names of journals sort by time."""
        return cls(*create_folder(folder, new_answer_id(datetime.now(UTC))))

    @classmethod
    def adopt(cls, path: Path) -> "FeedbackJournal | None":
        """Return the journal that a process left; None if that process is alive, or another one delivers it."""
        lock = lock_folder(path)
        return None if lock is None else cls(path, lock)

    def append(self, record: Answer | Event) -> bool:
        """Write a record with a single system call; return False, and log it once, if the disk is full."""
        what = "answer" if isinstance(record, Answer) else "event"
        return self.append_line({what: record}, what)

    def unsent(self) -> Iterator[tuple[Record, int]]:
        """Yield the undelivered records that are there now, each with the position after it."""
        end = self.size()
        for line, position in self.lines(self._positions["records"]):
            if position > end:  # written meanwhile, perhaps an event that waits
                return
            yield _record(line), position

    def size(self) -> int:
        """Return the number of bytes of its records, delivered ones included."""
        return (self.path / RECORDS).stat().st_size

    def refuse(self, record: Record, reason: str) -> None:
        """Set aside what the database cannot take, with the reason; of an answer only its id."""
        kept = record if isinstance(record, Event) else {"answer_id": getattr(record, "answer_id", None)}
        path = self.path.parent / REFUSED
        with path.open("ab", buffering=0) as stream:
            if stream.tell() < _MAX_REFUSED:
                stream.write(orjson.dumps({"reason": reason, "record": kept}) + b"\n")


def journals(folder: Path) -> list[Path]:
    """Return the journals below a folder, oldest first, and delete the remains of others."""
    delete_remains(folder)
    return sorted(path for path in folder.glob("[!.]*") if (path / RECORDS).exists())


def waiting(folder: Path) -> int:
    """Return the number of undelivered records in all journals below a folder, those of running services included."""
    number = 0
    for path in journals(folder):
        with suppress(FileNotFoundError, TypeError, ValueError):  # delivered and removed meanwhile, or damaged
            number += sum(1 for _ in lines_of(path, positions_of(path).get("records", 0)))
    return number


def _record(line: bytes) -> Record:
    try:
        found = _LINE.validate_json(line)
    except ValidationError:
        found = _Line()
    return found.answer or found.event or DamagedLine(f"a line of {len(line)} bytes is damaged")
