"""Answers and events in files on disk, which buffer them until they are delivered to the database.

A journal has a line that names its database, then one for each record, in order, and is locked while the writing
process lives. If that process is killed, another one with the same database delivers its journal.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import orjson
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from convrec.project.journal import JournalFile, lines
from convrec.service.feedback.database import URL_VARIABLE
from convrec.service.feedback.records import Answer, Event, new_answer_id
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

REFUSED = "refused.jsonl"
_MAX_REFUSED = 16 * 1024**2  # bytes; a client that sends nonsense must not fill the disk
_NAME = b'{"database":'  # how the first line begins
_BATCH = 500  # records of one transaction
_BAD_RECORD = (SQLAlchemyError, ValueError, TypeError, OverflowError)  # errors of one record, such as a NUL in a text

Record = Answer | Event | str  # a text is the reason why a line is none
_RECORD: TypeAdapter[Answer | Event] = TypeAdapter(Answer | Event)


class Journal(JournalFile):
    """A file of answers and events; this process has it locked until `close`."""

    def __init__(self, path: Path, descriptor: int):
        super().__init__(path, descriptor)
        with path.open("rb") as stream:
            line = stream.readline()
        # None if the first line is damaged, as after a power failure.
        self.database: str | None = orjson.loads(line)["database"] if line.startswith(_NAME) else None
        self._start = 0 if self.database is None else len(line)

    @property
    def size(self) -> int:
        """The bytes of its records."""
        return os.fstat(self._descriptor).st_size - self._start

    @classmethod
    def create(cls, folder: Path, database: str) -> "Journal":
        """Return a new journal of a database in the folder; the names of journals sort by time.

        Raises `OSError` if the disk is full.
        """
        return cls.start(folder / f"{new_answer_id(datetime.now(UTC))}.journal", {"database": database})

    def records(self, first: int = 0, last: int | None = None) -> Iterator[Record]:
        """Yield the records between two bytes, by default all."""
        for _, line in lines(self.path, self._start + first, None if last is None else self._start + last):
            try:
                yield _RECORD.validate_json(line)
            except ValidationError:  # the reason does not quote the line: its user may be deleted
                yield f"a line of {len(line)} bytes is damaged"

    def refuse(self, record: Record, reason: str) -> None:
        """Set aside what the database cannot take, with the reason; of an answer only its id."""
        logger.warning("a feedback record is set aside in %s: %s", self.path.parent, reason)
        kept = record if isinstance(record, Event) else {"answer_id": getattr(record, "answer_id", None)}
        with suppress(OSError), self.path.with_name(REFUSED).open("ab", buffering=0) as stream:
            if stream.tell() < _MAX_REFUSED:
                stream.write(orjson.dumps({"reason": reason, "record": kept}) + b"\n")

    def clear(self) -> None:
        """Drop all records."""
        os.ftruncate(self._descriptor, self._start)

    def close(self) -> None:
        """Release the lock, so that another process can deliver the journal; an empty one is removed."""
        if self.size <= 0:
            self.path.unlink(missing_ok=True)
        super().close()


def deliver_left(folder: Path, store: FeedbackStore) -> list[str]:
    """Deliver the journals of processes that ended; return why the others stay. Raises what `deliver` raises."""
    stays = []
    for path in sorted(folder.glob("*.journal")):
        try:
            if (journal := Journal.open(path)) is None:
                continue
            try:
                if journal.database in (None, store.identity(folder)):
                    deliver(journal, store)
                    journal.clear()
                else:
                    remedy = f"give it with --feedback or {URL_VARIABLE} to `convrec feedback status`"
                    stays.append(f"{path} stays: it belongs to the database {_from_here(journal, folder)}; {remedy}")
            finally:
                journal.close()
        except (OSError, ValueError) as error:
            stays.append(f"{path} stays: it cannot be used ({error}); change its owner, or move it away")
    return stays


def _from_here(journal: Journal, folder: Path) -> str:
    """Return the URL of a journal's database, in which the file of SQLite is relative to the working directory."""
    kind, path = str(journal.database).split("///", 1) if "sqlite:///" in str(journal.database) else ("", "")
    return f"{kind}///{os.path.relpath(folder.resolve() / path)}" if kind else str(journal.database)


def deliver(journal: Journal, store: FeedbackStore, first: int = 0, last: int | None = None) -> None:
    """Write the records between two bytes to the database, in batches, and set invalid ones aside.

    Raises `Unavailable` and `InputError` as the store does. A batch that is written again changes nothing.
    """
    records = journal.records(first, last)
    while batch := list(islice(records, _BATCH)):
        _write(journal, store, batch)


def _write(journal: Journal, store: FeedbackStore, records: Sequence[Record]) -> None:
    """Write records, one by one if the database rejects them together."""
    answers = [record for record in records if isinstance(record, Answer)]
    events = [record for record in records if isinstance(record, Event)]
    for record in records:
        if isinstance(record, str):
            journal.refuse(record, record)
    try:
        store.write(answers, events)
    except _BAD_RECORD as error:
        if len(records) > 1:
            for one in records:
                if not isinstance(one, str):
                    _write(journal, store, [one])
        else:
            journal.refuse(records[0], f"the database rejects it ({type(getattr(error, 'orig', error)).__name__})")
