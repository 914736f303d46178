"""The feedback database: its tables, and connections to SQLite or PostgreSQL."""

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool
from sqlalchemy.types import TypeDecorator

from convrec.project.errors import InputError, NoSpace, Unavailable, is_damaged, outside_cause
from convrec.project.redaction import MASK, redact

URL_VARIABLE = "CONVREC_FEEDBACK_URL"
DATABASE, JOURNAL = Path("feedback", "feedback.db"), Path("feedback", "journal")  # below the project's folder
_TIMEOUT = 5  # seconds to connect, and to wait for SQLite's lock
_STATEMENT_MS = 60_000  # PostgreSQL ends a statement after it, so that a hung one does not hold the delivery for ever
_DRIVERS = {"sqlite": ("pysqlite",), "postgresql": ("psycopg", "psycopg2")}
_REFUSED = r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) \S+ does not exist"
_CREATING = 7_262_337  # PostgreSQL's advisory lock: services that start at once create the tables one after the other


class Utc(TypeDecorator[datetime]):
    """An aware time. SQLite stores it in UTC without a zone, PostgreSQL as `timestamptz`."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the time in UTC, without its zone for SQLite."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:
        """Return the time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


metadata = sa.MetaData()
answers = sa.Table(
    "answers",
    metadata,
    sa.Column("answer_id", sa.String, primary_key=True),
    sa.Column("time", Utc, nullable=False, index=True),
    sa.Column("user_id", sa.String, index=True),
    sa.Column("experiment", sa.String),
    sa.Column("arm", sa.String),
    sa.Column("latency_seconds", sa.Float, nullable=False),
    sa.Column("messages", sa.Text),  # JSON
    sa.Column("num_items", sa.Integer, nullable=False),
)
shown = sa.Table(
    "shown",
    metadata,
    sa.Column("answer_id", sa.String, primary_key=True),
    sa.Column("list", sa.String, primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("item_id", sa.String, nullable=False),
    sa.Column("version", sa.String, nullable=False),
)
events = sa.Table(
    "events",
    metadata,
    sa.Column("event_id", sa.String, primary_key=True),
    sa.Column("answer_id", sa.String, nullable=False, index=True),
    sa.Column("list", sa.String, nullable=False),
    sa.Column("item_id", sa.String, nullable=False),
    sa.Column("event", sa.String, nullable=False),
    sa.Column("time", Utc, nullable=False),
)
# Users that were deleted: an answer from before the deletion that a journal delivers later is dropped.
deletions = sa.Table(
    "deletions",
    metadata,
    sa.Column("user", sa.String, primary_key=True),  # SHA-256 of the user's id
    sa.Column("time", Utc, nullable=False),
)


def feedback_url(given: str | None = None, root: Path = Path()) -> str:
    """Return the URL of the database: the given one, that of `CONVREC_FEEDBACK_URL`, or `feedback/feedback.db`."""
    return given or os.environ.get(URL_VARIABLE) or f"sqlite:///{(root / DATABASE).absolute()}"


def checked_url(url: str) -> sa.URL:
    """Return the parsed URL; raises `InputError` unless it names a SQLite file or a PostgreSQL database."""
    remedy = f"give sqlite:///FILE or postgresql://... with --feedback or {URL_VARIABLE}"
    try:
        parsed = sa.make_url(url)
        kind, driver = parsed.get_backend_name(), parsed.get_driver_name()
    except (ArgumentError, ValueError):  # the second: a port that is no number
        shown = redact(re.sub(r".*@", f"{MASK}@", url, flags=re.DOTALL))
        raise InputError(f"feedback database {shown!r:.80} is not a valid URL; {remedy}") from None
    if driver not in _DRIVERS.get(kind, ()) or (kind == "sqlite" and parsed.database in (None, "", ":memory:")):
        raise InputError(f"feedback database {shown_url(parsed)!r:.80} is not supported; {remedy}")
    return parsed


def open_engine(url: sa.URL) -> sa.Engine:
    """Return an engine for the URL without connecting. Raises `InputError` if its driver is not installed."""
    if url.get_backend_name() == "sqlite":
        # Each transaction opens the file again, so that nothing is written to one that was moved or removed.
        engine = sa.create_engine(url, connect_args={"timeout": _TIMEOUT}, poolclass=NullPool)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        return engine
    options = {"connect_timeout": _TIMEOUT, "options": f"-c statement_timeout={_STATEMENT_MS}"}
    options |= {"keepalives_idle": _TIMEOUT, "tcp_user_timeout": 1000 * 2 * _TIMEOUT}  # of a machine that is gone
    try:
        return sa.create_engine(url, connect_args=options, pool_pre_ping=True, pool_timeout=_TIMEOUT)
    except ModuleNotFoundError as error:
        remedy = "pip install 'convrec[server]'"
        raise InputError(f"feedback database {shown_url(url)}: its driver {error.name} is missing; {remedy}") from None


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver would commit before it creates a table
    deadline = time.monotonic() + _TIMEOUT
    while True:  # SQLite's own timeout does not cover a change of the mode while another process writes
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # readers do not block writers
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = FULL")  # a journal is removed once its records are committed
    connection.execute("PRAGMA secure_delete = ON")  # what a user deleted is overwritten in the file


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and then writes would fail at once if another process writes in between.
    is_write = connection.get_execution_options().get("is_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


@contextmanager
def transaction(engine: sa.Engine, is_write: bool) -> Iterator[sa.Connection]:
    """Yield a connection in a transaction.

    Raises `Unavailable` if the database is away, `NoSpace` if its disk is full, and `InputError` if it is damaged or
    rejects the user.
    """
    database = f"feedback database {shown_url(engine.url)}"
    try:
        with engine.connect().execution_options(is_write=is_write) as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        cause = error.orig or error  # the error's own text quotes records
        reason = " ".join(str(cause).split())[:200]
        if is_damaged(cause):
            raise InputError(f"{database} is damaged ({reason}); restore a backup") from error
        if isinstance(outside := outside_cause(cause), NoSpace):
            raise outside from error
        if re.search(_REFUSED, reason):
            remedy = f"correct user, password and database in --feedback or {URL_VARIABLE}"
            raise InputError(f"{database} rejects this user ({reason}); {remedy}") from error
        if isinstance(error, DataError | IntegrityError):  # of a record; any other keeps the records for later
            raise
        raise Unavailable(f"{database} is unavailable ({reason}); retry later") from error
    except PoolTimeout as error:  # all connections wait for a server that hangs
        raise Unavailable(f"{database} does not answer; retry later") from error


def create_tables(engine: sa.Engine) -> None:
    """Create the tables if they are not there.

    Raises `Unavailable` if the database is away, and `InputError` if its tables are those of another version.
    """
    if engine.dialect.name == "sqlite":
        Path(str(engine.url.database)).parent.mkdir(parents=True, exist_ok=True)
    with transaction(engine, is_write=True) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATING})
        metadata.create_all(connection)
        known = sa.inspect(connection)
        for table in metadata.sorted_tables:
            found = {column["name"] for column in known.get_columns(table.name)}
            if other := found ^ set(table.c.keys()):
                raise InputError(
                    f"feedback database {shown_url(engine.url)}: the table {table.name} is that of another version of "
                    f"convrec, by its columns {', '.join(sorted(other))}; drop or add them, or give another database"
                )


def shown_url(url: sa.URL) -> str:
    """Return the URL without its password."""
    return redact(url.render_as_string(hide_password=True))
