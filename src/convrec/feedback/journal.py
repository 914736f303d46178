"""Answers and events as lines of a journal, which buffers them on disk until the database has them."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from convrec.feedback.records import EVENTS, Answer, Event, Shown, new_answer_id
from convrec.files.journal import (
    RECORDS,
    DiskJournal,
    create_folder,
    delete_remains,
    lines_of,
    lock_folder,
    positions_of,
)

logger = logging.getLogger(__name__)

REFUSED = "refused.jsonl"
_MAX_REFUSED = 16 * 1024**2  # bytes; a client that sends nonsense must not fill the disk


class DamagedLine(ValueError):
    """A line of a journal is no answer and no event."""


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

    def unsent(self) -> Iterator[tuple[Answer | Event | DamagedLine, int]]:
        """Yield the undelivered records that are there now, each with the position after it."""
        end = (self.path / RECORDS).stat().st_size
        for line, position in self.lines(self._positions["records"]):
            if position > end:  # written meanwhile, perhaps an event that waits
                return
            try:
                yield _record(line), position
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                # Not the line itself: part of a conversation would stay after its user was deleted.
                yield DamagedLine(f"a line of {len(line)} bytes is damaged ({type(error).__name__})"), position

    def size(self) -> int:
        """Return the number of bytes of its records, delivered ones included."""
        return (self.path / RECORDS).stat().st_size

    def refuse(self, record: Answer | Event | DamagedLine, reason: str) -> None:
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


def _record(line: bytes) -> Answer | Event:
    ((kind, values),) = orjson.loads(line).items()
    values["time"] = datetime.fromisoformat(values["time"])
    if kind == "answer":
        _check(values, ("answer_id",), ("user_id", "experiment", "arm"))
        for one in values["shown"]:
            _check(one, ("list", "item_id", "version"))
        given = {name: values.get(name) for name in ("denied", "allowed")}
        filters = {name: tuple(map(str, ids)) for name, ids in given.items() if ids is not None}
        return Answer(**{**values, **filters, "shown": tuple(Shown(**one) for one in values["shown"])})
    _check(values, ("event_id", "answer_id", "list", "item_id"))
    if kind != "event" or values["event"] not in EVENTS:
        raise ValueError(kind)
    return Event(**values)


def _check(values: dict[str, Any], texts: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raise `TypeError` unless these values are texts: a driver's error for others says nothing about the record."""
    if not all(isinstance(values[name], str) for name in texts):
        raise TypeError(texts)
    if not all(values[name] is None or isinstance(values[name], str) for name in optional):
        raise TypeError(optional)
