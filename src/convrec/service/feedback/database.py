"""Connections to the feedback database, SQLite or PostgreSQL, and its migration."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import NullPool

from convrec.project.errors import InputError, Unavailable, is_damaged

URL_VARIABLE = "CONVREC_FEEDBACK_URL"
DATABASE, JOURNAL = Path("feedback", "feedback.db"), Path("feedback", "journal")  # below the project's folder
_TIMEOUT = 5  # seconds to connect, and to wait for SQLite's lock
_STATEMENT_MS = (
    60_000  # after which PostgreSQL ends a statement, so that a hung one does not hold the delivery for ever
)
_MIGRATING = 7_262_337  # PostgreSQL's advisory lock: two services that start at once migrate one after the other


def checked_url(url: str) -> URL:
    """Return the parsed URL; raises `InputError` unless it names a SQLite file or a PostgreSQL database."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InputError(
            f"feedback database {url!r:.80} is not a URL; give sqlite:///FILE or postgresql://..."
        ) from None
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise InputError(f"feedback database {kind!r:.80} is not supported; give sqlite:///FILE or postgresql://...")
    if kind == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InputError(f"feedback database {url!r:.80} names no file; give sqlite:///FILE")
    return parsed


def feedback_url(given: str | None = None, root: Path = Path()) -> str:
    """Return the URL of the database: the given one, that of `CONVREC_FEEDBACK_URL`, or `feedback/feedback.db`.

    Raises `InputError`, naming where the URL comes from, for one that cannot be used.
    """
    source, url = ("--feedback", given) if given else (URL_VARIABLE, os.environ.get(URL_VARIABLE))
    if not url:
        return f"sqlite:///{(root / DATABASE).absolute()}"
    try:
        checked_url(url)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return url


def open_engine(url: URL) -> Engine:
    """Return an engine for the URL without connecting. Raises `InputError` if its driver is not installed."""
    is_sqlite = url.get_backend_name() == "sqlite"
    options: dict[str, Any] = {"timeout": _TIMEOUT}
    if not is_sqlite:
        options = {"connect_timeout": _TIMEOUT, "options": f"-c statement_timeout={_STATEMENT_MS}"}
        options |= {"keepalives_idle": _TIMEOUT, "tcp_user_timeout": 1000 * 2 * _TIMEOUT}  # of a machine that is gone
    # Each transaction opens SQLite's file again, so that nothing is written to one that was moved or removed.
    pool: dict[str, Any] = {"poolclass": NullPool} if is_sqlite else {"pool_pre_ping": True, "pool_timeout": _TIMEOUT}
    try:
        engine = create_engine(url, connect_args=options, **pool)
    except ModuleNotFoundError as error:
        remedy = "pip install 'convrec[server]'"
        raise InputError(f"feedback database {shown_url(url)}: its driver {error.name} is missing; {remedy}") from None
    if is_sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # the driver would commit before it creates a table
    connection.execute("PRAGMA journal_mode = WAL")  # who reads does not block who writes
    connection.execute("PRAGMA synchronous = FULL")  # a journal is removed once its records are committed
    connection.execute("PRAGMA secure_delete = ON")  # what a user deleted is overwritten in the file


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then writes would fail at once if another process writes in between.
    is_write = connection.get_execution_options().get("is_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


@contextmanager
def transaction(engine: Engine, is_write: bool) -> Iterator[Connection]:
    """Yield a connection in a transaction. Raises `Unavailable` if the database is away, `InputError` if damaged."""
    try:
        with engine.connect().execution_options(is_write=is_write) as connection, connection.begin():
            yield connection
    except DBAPIError as error:
        reason = " ".join(str(error.orig).split())[:200]
        if is_damaged(error):
            raise InputError(
                f"feedback database {shown_url(engine.url)} is damaged ({reason}); restore a backup"
            ) from error
        if isinstance(error, DataError | IntegrityError):  # of a record; any other keeps the records for later
            raise
        raise Unavailable(
            f"feedback database {shown_url(engine.url)} is unavailable ({reason}); retry later"
        ) from error
    except PoolTimeout as error:  # all connections wait for a server that hangs
        raise Unavailable(f"feedback database {shown_url(engine.url)} does not answer; retry later") from error


def require_file(engine: Engine) -> None:
    """Raise `Unavailable` if SQLite's file has gone since it was migrated; opening it would create an empty one."""
    if engine.url.get_backend_name() == "sqlite" and not Path(str(engine.url.database)).exists():
        remedy = "restore the file, or start the service again to create a new one"
        raise Unavailable(f"feedback database {shown_url(engine.url)} is gone; {remedy}")


def migrate(engine: Engine) -> None:
    """Create the tables or bring them up to date.

    Raises `Unavailable` if the database is away, and `InputError` if a later version of convrec has migrated it.
    """
    if engine.url.get_backend_name() == "sqlite":
        Path(str(engine.url.database)).parent.mkdir(parents=True, exist_ok=True)
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    logging.getLogger("alembic.runtime.migration").setLevel(logging.WARNING)  # it names itself at each start
    with transaction(engine, is_write=True) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATING})
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise InputError(
                f"feedback database {shown_url(engine.url)} belongs to a later version of convrec ({error}); update "
                "convrec"
            ) from None


def shown_url(url: URL) -> str:
    """Return the URL without its password."""
    return url.render_as_string(hide_password=True)
