"""The feedback database: answers, the items they showed, and events; SQLite or PostgreSQL."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl
from sqlalchemy import Connection, Table, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from convrec.feedback import reading, tables
from convrec.feedback.database import checked_url, migrate, open_engine, require_file, shown_url, transaction
from convrec.feedback.records import Answer, Event

_CHUNK = 500  # ids of one `IN (...)`; SQLite limits the parameters of a statement


@dataclass(frozen=True)
class Refused:
    """An event that the database cannot take, and why."""

    event: Event
    reason: str
    is_answer_known: bool


class FeedbackStore:
    """Writes and reads the feedback database; connects and migrates at the first use. Thread-safe.

    All methods raise `Unavailable` if the database is away, and `InputError` if it is damaged or too new. `since` is
    inclusive and `until` exclusive; both are times of answers, None for no limit.
    """

    def __init__(self, url: str):
        """Check the URL (`sqlite:///FILE`, `postgresql://...`). Raises `InputError`."""
        self._engine = open_engine(checked_url(url))
        self._is_migrated = False

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _transaction(self, is_write: bool = False) -> Any:
        if not self._is_migrated:
            migrate(self._engine)
            self._is_migrated = True
        require_file(self._engine)
        return transaction(self._engine, is_write)

    def write(self, answers: Sequence[Answer], events: Sequence[Event]) -> list[Refused]:
        """Write all in one transaction, and return the events whose answer is unknown or did not show the item.

        An answer or event whose id is stored is left as it is, so writing twice is safe. Answers of a user from before
        their deletion are dropped.
        """
        with self._transaction(is_write=True) as connection:
            kept = self._not_deleted(connection, answers)
            self._insert(connection, tables.answers, [_answer_row(answer) for answer in kept])
            rows = [
                {"answer_id": answer.answer_id, **{name: getattr(one, name) for name in _ITEM}}
                for answer in kept
                for one in answer.shown
            ]
            self._insert(connection, tables.shown, rows)
            return self._write_events(connection, events)

    def _not_deleted(self, connection: Connection, answers: Sequence[Answer]) -> list[Answer]:
        users = {answer.user_id: _digest(answer.user_id) for answer in answers if answer.user_id is not None}
        deleted: dict[str, datetime] = {}
        for chunk in _chunks(list(users.values())):
            query = select(tables.deletions).where(tables.deletions.c.user.in_(chunk))
            deleted |= {row.user: row.time for row in connection.execute(query)}
        return [
            answer
            for answer in answers
            if answer.user_id is None
            or users[answer.user_id] not in deleted
            or answer.time > deleted[users[answer.user_id]]
        ]

    def _write_events(self, connection: Connection, events: Sequence[Event]) -> list[Refused]:
        known, ranks = self._ranks(connection, list({event.answer_id for event in events}))
        rows, refused = [], []
        for event in events:
            rank = ranks.get((event.answer_id, event.list, event.item_id))
            if event.answer_id not in known:
                refused.append(Refused(event, f"answer_id {event.answer_id!r:.60} is unknown", False))
            elif rank is None:
                refused.append(Refused(event, not_shown(event.list, event.item_id), True))
            else:
                rows.append({**{name: getattr(event, name) for name in reading.EVENTS if name != "rank"}, "rank": rank})
        self._insert(connection, tables.events, rows)
        return refused

    def _ranks(
        self, connection: Connection, answer_ids: Sequence[str]
    ) -> tuple[set[str], dict[tuple[str, str, str], int]]:
        known: set[str] = set()
        ranks: dict[tuple[str, str, str], int] = {}
        for chunk in _chunks(answer_ids):
            column = tables.answers.c.answer_id
            known |= set(connection.scalars(select(column).where(column.in_(chunk))))
            table = tables.shown.c
            query = select(table.answer_id, table.list, table.item_id, table.rank).where(table.answer_id.in_(chunk))
            ranks |= {(one, name, item): rank for one, name, item, rank in connection.execute(query)}
        return known, ranks

    def items(self, answer_id: str) -> set[tuple[str, str]] | None:
        """Return the lists and items that an answer showed; None if the answer is unknown."""
        with self._transaction() as connection:
            known, ranks = self._ranks(connection, [answer_id])
        return {(name, item) for _, name, item in ranks} if known else None

    def _insert(self, connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._engine.dialect.name]
        if rows:
            connection.execute(insert(table).on_conflict_do_nothing(), rows)

    def answers(
        self, since: datetime | None = None, until: datetime | None = None, experiment: str | None = None
    ) -> pl.DataFrame:
        """Return the answers, oldest first; `messages`, `denied` and `allowed` are JSON or null."""
        with self._transaction() as connection:
            return reading.answers(connection, since, until, experiment)

    def shown(self, since: datetime | None = None, until: datetime | None = None) -> pl.DataFrame:
        """Return the shown items with `time`, `user_id`, `experiment`, `arm` and `is_explored` of their answers."""
        with self._transaction() as connection:
            return reading.shown(connection, since, until)

    def events(self, since: datetime | None = None, until: datetime | None = None) -> pl.DataFrame:
        """Return the events of the answers of this period, oldest first."""
        with self._transaction() as connection:
            return reading.events(connection, since, until)

    def outcomes(self, since: datetime | None = None, until: datetime | None = None) -> pl.DataFrame:
        """Return one row for each shown item: the columns of `shown`, and what the user did with it.

        `accepted`, `rejected` and `hidden` say which of them the last state was; `clicked` and `watched` whether it
        happened at all.
        """
        with self._transaction() as connection:
            happened = reading.events(connection, since, until)
            return reading.outcomes(reading.shown(connection, since, until), happened)

    def delete_user(self, user_id: str) -> int:
        """Delete the answers of a user with their items and events; return the number of answers.

        The SHA-256 of the id is kept until `prune`, so that answers from before, which a journal delivers later, are
        dropped.
        """
        with self._transaction(is_write=True) as connection:
            deletion = {"user": _digest(user_id), "time": datetime.now(UTC)}
            connection.execute(delete(tables.deletions).where(tables.deletions.c.user == deletion["user"]))
            self._insert(connection, tables.deletions, [deletion])
            return _delete_answers(connection, tables.answers.c.user_id == user_id)

    def prune(self, before: datetime) -> int:
        """Delete the answers from before this time with their items and events; return the number of answers."""
        with self._transaction(is_write=True) as connection:
            connection.execute(delete(tables.deletions).where(tables.deletions.c.time < before))
            return _delete_answers(connection, tables.answers.c.time < before)

    @property
    def address(self) -> str:
        """The URL without its password."""
        return shown_url(self._engine.url)

    def period(self) -> tuple[datetime | None, datetime | None]:
        """Return the times of the first and the last answer; None without answers."""
        time = tables.answers.c.time
        with self._transaction() as connection:
            first, last = connection.execute(select(func.min(time), func.max(time))).one()
        return first, last

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        stored = (tables.answers, tables.shown, tables.events)
        with self._transaction() as connection:
            return {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in stored}


_ITEM = ("list", "rank", "item_id", "version", "propensity")


def not_shown(name: str, item_id: str) -> str:
    """Return the reason why an event's item cannot be: the answer's list does not have it."""
    where = f" in list {name!r:.60}" if name else ""
    return f"item_id {item_id!r:.60} was not shown{where} by this answer; give one of its items"


def _answer_row(answer: Answer) -> dict[str, Any]:
    as_json = {"messages": answer.messages, "denied": answer.denied or None, "allowed": answer.allowed}
    texts = {
        name: None if value is None else json.dumps(list(value), ensure_ascii=False) for name, value in as_json.items()
    }
    names = (name for name in reading.ANSWERS if name != "num_items" and name not in texts)
    return {**{name: getattr(answer, name) for name in names}, **texts, "num_items": len(answer.shown)}


def _delete_answers(connection: Connection, which: Any) -> int:
    chosen = select(tables.answers.c.answer_id).where(which)
    for table in (tables.events, tables.shown):
        connection.execute(delete(table).where(table.c.answer_id.in_(chosen)))
    return connection.execute(delete(tables.answers).where(which)).rowcount


def _digest(user_id: str) -> str:
    return hashlib.sha256(user_id.encode()).hexdigest()


def _chunks(values: Sequence[str]) -> list[Sequence[str]]:
    return [values[start : start + _CHUNK] for start in range(0, len(values), _CHUNK)]
