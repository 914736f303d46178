"""Answers and events that the feedback database does not have yet: one SQLite file for all services of a folder.

Any process delivers what any other one has recorded. A record that is delivered twice changes nothing, so nothing is
lost or stored twice when a process is killed.
"""

import json
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import TypeAdapter
from sqlalchemy.exc import SQLAlchemyError

from convrec.project.errors import InputError, outside_cause
from convrec.service.feedback.database import URL_VARIABLE
from convrec.service.feedback.records import Answer, Event
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

_MAX_REFUSED = 50_000  # records that are kept with the reason; a client that sends nonsense must not fill the disk
_BATCH = 500  # records of one transaction
_BAD_RECORD = (SQLAlchemyError, ValueError, TypeError, OverflowError)  # errors of one record, such as a NUL in a text
_RECORD: TypeAdapter[Answer | Event] = TypeAdapter(Answer | Event)  # ignores fields of other releases
# `database` is the one that a record is for, `reason` why it was refused; null: it waits.
_CREATE = """
CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY AUTOINCREMENT, database TEXT, record TEXT, reason TEXT)"""

Row = tuple[int, bytes]


class Journal:
    """The records of a folder's services; those for `store` are delivered to it. Thread-safe."""

    def __init__(self, path: Path, store: FeedbackStore):
        """Open or create the file. Raises `InputError` or `NoSpace` if it cannot be used."""
        self.path, self._store, self._database = path, store, store.identity(path.parent)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o600)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")  # a record waits for no disk
            self._connection.execute("PRAGMA secure_delete = ON")  # what was delivered is overwritten
            self._connection.execute(_CREATE)
        except (OSError, sqlite3.Error) as error:
            remedy = "change its owner or permissions, or move it away"
            raise outside_cause(error) or InputError(f"{path}: cannot be used ({error}); {remedy}") from None

    def append(self, record: Answer | Event) -> None:
        """Write a record. Raises `sqlite3.Error` if the disk is full."""
        row = self._database, orjson.dumps(record)
        self._connection.execute("INSERT INTO records (database, record) VALUES (?, ?)", row)

    def _count(self, condition: str) -> int:
        found = self._connection.execute(f"SELECT count(*) FROM records WHERE {condition}", {"own": self._database})
        return found.fetchone()[0]

    @property
    def waiting(self) -> int:
        """The number of records that the store does not have yet."""
        return self._count("reason IS NULL AND database = :own")

    @property
    def refused(self) -> int:
        """The number of records that were set aside, with the reason."""
        return self._count("reason IS NOT NULL")

    def of_others(self) -> list[str]:
        """Return a sentence for each other database that records wait for."""
        query = "SELECT database, count(*) FROM records WHERE reason IS NULL AND database != ? GROUP BY database"
        remedy = f"give it with --feedback or {URL_VARIABLE} to `convrec feedback status`"
        found = []
        for name, number in self._connection.execute(query, [self._database]).fetchall():
            kind, is_file, path = name.partition("///")
            place = f"{kind}///{os.path.relpath(self.path.parent.resolve() / path)}" if is_file else name
            found.append(f"{number:,} records in {self.path} are for the database {place}; {remedy}")
        return found

    def deliver(self) -> None:
        """Write the waiting records to the store, in batches, and set those aside that it cannot take.

        Raises `Unavailable` and `InputError` as the store does, and `sqlite3.Error` if the journal's disk is full.
        """
        query = "SELECT id, record FROM records WHERE reason IS NULL AND database = ? ORDER BY id LIMIT ?"
        while batch := self._connection.execute(query, [self._database, _BATCH]).fetchall():
            self._deliver(batch)

    def _deliver(self, rows: Sequence[Row]) -> None:
        """Deliver records, one by one if the store rejects them together."""
        try:
            records = [_RECORD.validate_json(record) for _, record in rows]
            answers = [record for record in records if isinstance(record, Answer)]
            self._store.write(answers, [record for record in records if isinstance(record, Event)])
        except _BAD_RECORD as error:
            if len(rows) > 1:
                for row in rows:
                    self._deliver([row])
            else:
                self._refuse(*rows[0], f"the database rejects it ({type(getattr(error, 'orig', error)).__name__})")
            return
        ends = rows[0][0], rows[-1][0], self._database
        self._connection.execute(
            "DELETE FROM records WHERE id BETWEEN ? AND ? AND database = ? AND reason IS NULL", ends
        )

    def _refuse(self, number: int, record: bytes, reason: str) -> None:
        """Set a record aside; of an answer only its id is kept."""
        logger.warning("a feedback record is set aside in %s: %s", self.path, reason)
        if self.refused >= _MAX_REFUSED:
            self._connection.execute("DELETE FROM records WHERE id = ?", [number])
            return
        value = json.loads(record)
        kept = orjson.dumps(value if "event" in value else {"answer_id": value.get("answer_id")})
        self._connection.execute("UPDATE records SET reason = ?, record = ? WHERE id = ?", (reason, kept, number))

    def close(self) -> None:
        """Close the file; what still waits is delivered by the next process."""
        self._connection.close()
