"""Reads of the feedback database as polars frames.

`since` is inclusive and `until` exclusive; both are times of answers, None for no limit.
"""

from datetime import datetime
from typing import Any

import polars as pl
from sqlalchemy import Connection, Select, select

from convrec.feedback import tables
from convrec.feedback.records import STATES

_TIME = pl.Datetime("us", "UTC")
ANSWERS = {
    "answer_id": pl.String,
    "time": _TIME,
    "user_id": pl.String,
    "experiment": pl.String,
    "arm": pl.String,
    "is_explored": pl.Boolean,
    "latency_seconds": pl.Float64,
    "messages": pl.String,
    "num_items": pl.Int64,
    "denied": pl.String,
    "allowed": pl.String,
}
_OF_ANSWER = ("time", "user_id", "experiment", "arm", "is_explored")  # an answer's columns beside its items
SHOWN = {
    "answer_id": pl.String,
    "list": pl.String,
    "rank": pl.Int64,
    "item_id": pl.String,
    "version": pl.String,
    "propensity": pl.Float64,
    **{name: ANSWERS[name] for name in _OF_ANSWER},
}
EVENTS = {
    "event_id": pl.String,
    "answer_id": pl.String,
    "list": pl.String,
    "item_id": pl.String,
    "rank": pl.Int64,
    "event": pl.String,
    "time": _TIME,
}
_KEY = ["answer_id", "list", "item_id"]
_LAST, _ANY = ("accepted", "rejected", "hidden"), ("clicked", "watched")  # facts of an item


def answers(
    connection: Connection, since: datetime | None, until: datetime | None, experiment: str | None
) -> pl.DataFrame:
    """Return the answers, of one experiment if it is given, oldest first."""
    query = select(*(tables.answers.c[name] for name in ANSWERS))
    if experiment is not None:
        query = query.where(tables.answers.c.experiment == experiment)
    order = tables.answers.c.time, tables.answers.c.answer_id
    return _read(connection, _within(query, since, until).order_by(*order), ANSWERS)


def shown(connection: Connection, since: datetime | None, until: datetime | None) -> pl.DataFrame:
    """Return the shown items with columns of their answers, in the order of answer, list and rank."""
    columns = [(tables.answers if name in _OF_ANSWER else tables.shown).c[name] for name in SHOWN]
    query = select(*columns).join(tables.answers, tables.answers.c.answer_id == tables.shown.c.answer_id)
    order = tables.answers.c.time, tables.shown.c.answer_id, tables.shown.c.list, tables.shown.c.rank
    return _read(connection, _within(query, since, until).order_by(*order), SHOWN)


def events(connection: Connection, since: datetime | None, until: datetime | None) -> pl.DataFrame:
    """Return the events of the answers of this period, oldest event first."""
    query = select(*(tables.events.c[name] for name in EVENTS))
    query = query.join(tables.answers, tables.answers.c.answer_id == tables.events.c.answer_id)
    order = tables.events.c.time, tables.events.c.event_id
    return _read(connection, _within(query, since, until).order_by(*order), EVENTS)


def outcomes(items: pl.DataFrame, happened: pl.DataFrame) -> pl.DataFrame:
    """Return shown items with what their events, oldest first, say (see `FeedbackStore.outcomes`)."""
    state = pl.col("event").filter(pl.col("event").is_in(STATES)).last()
    found = happened.group_by(_KEY, maintain_order=True).agg(
        *((state == name).alias(name) for name in _LAST),
        *((pl.col("event") == name).any().alias(name) for name in _ANY),
    )
    joined = items.join(found, on=_KEY, how="left", maintain_order="left")
    return joined.with_columns(pl.col(*_LAST, *_ANY).fill_null(False))


def _read(connection: Connection, query: Select[Any], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame([tuple(row) for row in connection.execute(query)], schema=schema, orient="row")


def _within(query: Select[Any], since: datetime | None, until: datetime | None) -> Select[Any]:
    if since is not None:
        query = query.where(tables.answers.c.time >= since)
    return query if until is None else query.where(tables.answers.c.time < until)
