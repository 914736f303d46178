"""The feedback database: answers, the items they showed, and events; SQLite or PostgreSQL; its export."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import IO, Any

import polars as pl
from pyarrow.parquet import ParquetWriter
from sqlalchemy import Connection, Select, Table, and_, delete, exists, func, select
from sqlalchemy.dialects import postgresql, sqlite

from convrec.data.titles import usable_user
from convrec.project.atomic import replaced
from convrec.project.errors import InputError, Unavailable
from convrec.service.feedback.database import (
    URL_VARIABLE,
    Utc,
    answers,
    checked_url,
    create_tables,
    deletions,
    events,
    feedback_url,
    open_engine,
    shown,
    shown_url,
    transaction,
)
from convrec.service.feedback.records import STATES, Answer, Event

_SHOWN = (*shown.c, answers.c.time, answers.c.user_id, answers.c.experiment, answers.c.arm)
_STATES, _FACTS = ("accepted", "rejected", "hidden"), ("clicked", "watched")  # columns of the outcomes
_ITEM = ["answer_id", "list", "item_id"]  # the key of a shown item
_PERIOD = 2_000  # answers that are read at once


class FeedbackStore:
    """Writes and reads the feedback database; connects and creates its tables at the first use. Thread-safe.

    All methods raise `Unavailable` if the database is away, and `InputError` if it is damaged or of another version.
    `since` is inclusive and `until` exclusive; both are times of answers, None for no limit.
    """

    def __init__(self, url: str):
        """Check the URL (`sqlite:///FILE`, `postgresql://...`). Raises `InputError`."""
        self._engine = open_engine(checked_url(url))
        self._has_tables = False

    def connect(self) -> None:
        """Connect once, and create the tables if they are not there."""
        with self._transaction():
            pass

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _transaction(self, is_write: bool = False) -> AbstractContextManager[Connection]:
        url = self._engine.url
        if not self._has_tables:
            create_tables(self._engine)
            self._has_tables = True
        elif url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
            remedy = "restore the file, or start the service again to create a new one"
            raise Unavailable(f"feedback database {self.address} is gone; {remedy}")
        return transaction(self._engine, is_write)

    def write(self, new_answers: Sequence[Answer], new_events: Sequence[Event]) -> None:
        """Write all in one transaction.

        An answer or event whose id is stored is left as it is, so writing twice is safe. Answers of a user from before
        their deletion are dropped with their events. Events of other unknown answers and items change no outcome.
        """
        with self._transaction(is_write=True) as connection:
            kept = _not_deleted(connection, new_answers)
            self._insert(connection, answers, [_answer_row(answer) for answer in kept])
            rows = [{"answer_id": answer.answer_id, **vars(one)} for answer in kept for one in answer.shown]
            self._insert(connection, shown, rows)
            dropped = {answer.answer_id for answer in new_answers} - {answer.answer_id for answer in kept}
            left = [vars(event) for event in new_events if event.answer_id not in dropped]
            self._insert(connection, events, left)

    def _insert(self, connection: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[self._engine.dialect.name]
        if rows:
            connection.execute(insert(table).on_conflict_do_nothing(), rows)

    def _read(self, query: Select[Any], since: datetime | None, until: datetime | None, *order: Any) -> pl.DataFrame:
        """Return the rows of a query whose answers are of this period."""
        if since is not None:
            query = query.where(answers.c.time >= since)
        if until is not None:
            query = query.where(answers.c.time < until)
        utc, columns = pl.Datetime("us", "UTC"), query.selected_columns
        schema = {one.name: utc if isinstance(one.type, Utc) else one.type.python_type for one in columns}
        with self._transaction() as connection:
            rows = [tuple(row) for row in connection.execute(query.order_by(*order))]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def answers(
        self, since: datetime | None = None, until: datetime | None = None, experiment: str | None = None
    ) -> pl.DataFrame:
        """Return the answers, oldest first; `messages` are JSON or null."""
        query = select(answers)
        if experiment is not None:
            query = query.where(answers.c.experiment == experiment)
        return self._read(query, since, until, answers.c.time, answers.c.answer_id)

    def shown(self, since: datetime | None = None, until: datetime | None = None) -> pl.DataFrame:
        """Return the shown items with `time`, `user_id`, `experiment` and `arm` of their answers."""
        query = select(*_SHOWN).join(answers, answers.c.answer_id == shown.c.answer_id)
        return self._read(query, since, until, answers.c.time, shown.c.answer_id, shown.c.list, shown.c.rank)

    def events(self, since: datetime | None = None, until: datetime | None = None) -> pl.DataFrame:
        """Return the events of the answers of this period, oldest first."""
        query = select(events).join(answers, answers.c.answer_id == events.c.answer_id)
        return self._read(query, since, until, events.c.time, events.c.event_id)

    def outcomes(
        self, since: datetime | None = None, until: datetime | None = None, within: timedelta | None = None
    ) -> pl.DataFrame:
        """Return one row for each shown item: the columns of `shown`, and what the user did with it.

        `accepted`, `rejected` and `hidden` say which of them the last state was; `clicked` and `watched` whether it
        happened at all. Only events `within` this time after the answer count, if it is given.
        """
        items, happened = self.shown(since, until), self.events(since, until)
        if within is not None:
            times = items.select("answer_id", pl.col("time").alias("asked")).unique()
            happened = happened.join(times, on="answer_id", maintain_order="left")
            happened = happened.filter(pl.col("time") < pl.col("asked") + within)
        joined = items.join(_folded(happened, _ITEM), on=_ITEM, how="left", maintain_order="left")
        return joined.with_columns(pl.col(*_STATES, *_FACTS).fill_null(False))

    def periods(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[tuple[datetime | None, datetime | None]]:
        """Yield periods from `since` to `until`, one after the other, which have some thousand answers each.

        What is read by period fits in memory, however much was recorded.
        """
        while True:
            query = select(answers.c.time).order_by(answers.c.time).offset(_PERIOD).limit(1)
            if since is not None:
                query = query.where(answers.c.time > since)
            if until is not None:
                query = query.where(answers.c.time < until)
            with self._transaction() as connection:
                end = connection.scalar(query)
            yield since, end or until
            if end is None:
                return
            since = end

    def recent(self, version: str, number: int, most: int) -> pl.DataFrame:
        """Return the items that a version showed in the newest `number` answers of each user with an id.

        Only the newest `most` answers of the version to such users count.
        Columns: `user_id`, `item_id`, `rank`, and `is_liked`: accepted, or watched and neither rejected nor hidden.
        """
        by_version = exists().where(shown.c.answer_id == answers.c.answer_id, shown.c.version == version)
        of_users = select(answers.c.answer_id, answers.c.user_id).where(answers.c.user_id.is_not(None), by_version)
        newest = of_users.order_by(answers.c.answer_id.desc()).limit(most).subquery()
        age = func.row_number().over(partition_by=newest.c.user_id, order_by=newest.c.answer_id.desc())
        aged = select(newest, age.label("age")).subquery()
        counts = and_(aged.c.answer_id == shown.c.answer_id, aged.c.age <= number, shown.c.version == version)
        query = select(*(shown.c[name] for name in (*_ITEM, "rank")), aged.c.user_id).join(aged, counts)
        items = self._read(query, None, None)
        query = select(events).join(aged, aged.c.answer_id == events.c.answer_id).where(aged.c.age <= number)
        outcomes = _folded(self._read(query, None, None, events.c.time, events.c.event_id), _ITEM)
        is_liked = pl.col("accepted") | (pl.col("watched") & ~pl.col("rejected") & ~pl.col("hidden"))
        joined = items.join(outcomes.select(*_ITEM, is_liked=is_liked), on=_ITEM, how="left")
        return joined.select("user_id", "item_id", "rank", pl.col("is_liked").fill_null(False))

    def delete_user(self, user_id: str) -> int:
        """Delete the answers of a user with their items and events, and events of unknown answers.

        Return the number of answers. The SHA-256 of the id is kept until `prune`, so that answers from before, which a
        journal delivers later, are dropped. Raises `InputError` for an id of nobody.
        """
        if not (user := usable_user(user_id)):
            raise InputError(
                f"user_id {user_id!r}: this is nobody's id; give that of a user, or delete by age with "
                "`convrec feedback prune`"
            )
        with self._transaction(is_write=True) as connection:
            deletion = {"user": _digest(user), "time": datetime.now(UTC)}
            connection.execute(delete(deletions).where(deletions.c.user == deletion["user"]))
            self._insert(connection, deletions, [deletion])
            number = _delete_answers(connection, answers.c.user_id == user)
            # Events whose answer is unknown may be of an answer of theirs that was dropped.
            connection.execute(delete(events).where(events.c.answer_id.not_in(select(answers.c.answer_id))))
            return number

    def prune(self, before: datetime) -> int:
        """Delete the answers from before this time with their items and events; return the number of answers."""
        with self._transaction(is_write=True) as connection:
            for table in (deletions, events):
                connection.execute(delete(table).where(table.c.time < before))
            return _delete_answers(connection, answers.c.time < before)

    @property
    def address(self) -> str:
        """The URL without its password."""
        return shown_url(self._engine.url)

    def identity(self, folder: Path) -> str:
        """Return a name of the database for all its users; that of a SQLite file is relative to a folder."""
        url = self._engine.url
        if url.get_backend_name() == "sqlite":
            return f"sqlite:///{os.path.relpath(Path(str(url.database)).resolve(), folder.resolve())}"
        host, port = (url.query.get(name) for name in ("host", "port"))
        return f"postgresql://{url.host or host or ''}:{url.port or port or 5432}/{url.database or ''}"

    def period(self) -> tuple[datetime | None, datetime | None]:
        """Return the times of the first and the last answer; None without answers."""
        with self._transaction() as connection:
            first, last = connection.execute(select(func.min(answers.c.time), func.max(answers.c.time))).one()
        return first, last

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        stored = (answers, shown, events)
        with self._transaction() as connection:
            return {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in stored}


def open_store(given: str | None = None, root: Path = Path()) -> FeedbackStore:
    """Return the feedback database of the URL `given`, or the default one (`feedback_url`).

    Raises `InputError` if the URL is wrong, or no feedback was recorded there.
    """
    url = feedback_url(given, root)
    parsed = checked_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
        raise InputError(
            f"{parsed.database}: no feedback was recorded; `convrec serve` records it, or name another database with "
            f"{URL_VARIABLE} or --feedback"
        )
    return FeedbackStore(url)


def _folded(happened: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return one row for each key of some events, with what their user did in the end (see `outcomes`)."""
    state = pl.col("event").filter(pl.col("event").is_in(STATES)).last()
    return happened.group_by(key, maintain_order=True).agg(
        *((state == name).fill_null(False).alias(name) for name in _STATES),
        *((pl.col("event") == name).any().alias(name) for name in _FACTS),
    )


def _answer_row(answer: Answer) -> dict[str, Any]:
    messages = None if answer.messages is None else json.dumps(list(answer.messages), ensure_ascii=False)
    row = {**vars(answer), "num_items": len(answer.shown), "messages": messages}
    del row["shown"]
    return row


def _not_deleted(connection: Connection, new_answers: Sequence[Answer]) -> list[Answer]:
    """Return the answers that are not of a user who was deleted after them."""
    digests = {answer.answer_id: _digest(answer.user_id) for answer in new_answers if answer.user_id}
    deleted = select(deletions).where(deletions.c.user.in_(set(digests.values())))
    times = {user: time for user, time in connection.execute(deleted)}
    never = datetime.min.replace(tzinfo=UTC)
    return [answer for answer in new_answers if answer.time > times.get(digests.get(answer.answer_id, ""), never)]


def _delete_answers(connection: Connection, which: Any) -> int:
    chosen = select(answers.c.answer_id).where(which)
    for table in (events, shown):
        connection.execute(delete(table).where(table.c.answer_id.in_(chosen)))
    return connection.execute(delete(answers).where(which)).rowcount


def _digest(user_id: str) -> str:
    return hashlib.sha256(user_id.encode()).hexdigest()


def export(store: FeedbackStore, path: Path, since: datetime | None = None, until: datetime | None = None) -> int:
    """Write the outcomes of `FeedbackStore.outcomes`, with `messages` (JSON), and return their number.

    The same feedback gives the same bytes, so that DVC sees a change only where there is one. Raises `InputError` for
    another ending than .parquet, .csv or .jsonl, and as the store does; the file then stays as it was.
    """
    write, number = _WRITERS.get(path.suffix.lower()), 0
    if write is None:
        raise InputError(f"{path}: the ending {path.suffix!r} is unknown; give one of {', '.join(_WRITERS)}")

    def frames() -> Iterator[pl.DataFrame]:
        nonlocal number
        for start, end in store.periods(since, until):
            messages = store.answers(start, end).select("answer_id", "messages")
            rows = store.outcomes(start, end).join(messages, on="answer_id", how="left", maintain_order="left")
            number += len(rows)
            yield rows

    with replaced(path) as new, new.open("wb") as stream:
        write(frames(), stream)
    return number


def _write_parquet(frames: Iterator[pl.DataFrame], stream: IO[bytes]) -> None:
    tables = (rows.to_arrow(compat_level=pl.CompatLevel.oldest()) for rows in frames)
    first = next(tables)
    with ParquetWriter(stream, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _write_csv(frames: Iterator[pl.DataFrame], stream: IO[bytes]) -> None:
    for number, rows in enumerate(frames):
        rows.write_csv(stream, include_header=number == 0, datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ")


def _write_jsonl(frames: Iterator[pl.DataFrame], stream: IO[bytes]) -> None:
    for rows in frames:
        rows.write_ndjson(stream)


_WRITERS = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl}
