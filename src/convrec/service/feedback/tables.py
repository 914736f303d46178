"""The tables of the feedback database, and what their columns are in polars.

A change needs a migration in `migrations/versions`.
"""

from datetime import UTC, datetime
from typing import Any

import polars as pl
from sqlalchemy import Column, DateTime, Dialect, Float, Integer, MetaData, String, Table, Text
from sqlalchemy.types import TypeDecorator


class Utc(TypeDecorator[datetime]):
    """An aware time. SQLite stores it in UTC without a zone, PostgreSQL as `timestamptz`."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return the time in UTC, without its zone for SQLite."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Return the time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


KINDS: dict[type, Any] = {
    String: pl.String,
    Text: pl.String,
    Integer: pl.Int64,
    Float: pl.Float64,
    Utc: pl.Datetime("us", "UTC"),
}

metadata = MetaData()

answers = Table(
    "answers",
    metadata,
    Column("answer_id", String, primary_key=True),
    Column("time", Utc, nullable=False, index=True),
    Column("user_id", String, index=True),
    Column("experiment", String),
    Column("arm", String),
    Column("latency_seconds", Float, nullable=False),
    Column("messages", Text),  # JSON
    Column("num_items", Integer, nullable=False),
    Column("denied", Text),  # JSON: item ids; null: none
    Column("allowed", Text),  # JSON: item ids; null: all
)

shown = Table(
    "shown",
    metadata,
    Column("answer_id", String, primary_key=True),
    Column("list", String, primary_key=True),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("item_id", String, nullable=False),
    Column("version", String, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("event_id", String, primary_key=True),
    Column("answer_id", String, nullable=False, index=True),
    Column("list", String, nullable=False),
    Column("item_id", String, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("event", String, nullable=False),
    Column("time", Utc, nullable=False),
)

# Users that were deleted: an answer from before the deletion that a journal delivers later is dropped.
deletions = Table(
    "deletions",
    metadata,
    Column("user", String, primary_key=True),  # SHA-256 of the user's id
    Column("time", Utc, nullable=False),
)
