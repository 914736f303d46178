"""Moves recorded answers to the time of a simulation, in the feedback database.

A service stamps answers and events with the present time, and has no option to lie about it. `monitor`, `refresh` and
the experiment read the times from the database, so a simulation changes them there.
"""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, Engine, Table, bindparam, func, select

from convrec.errors import Unavailable
from convrec.feedback.database import checked_url, migrate, open_engine, shown_url, transaction
from convrec.feedback.tables import answers, events

_PATIENCE = 60.0  # seconds until the service has delivered its answers to the database
_POLL = 0.1
_CHUNK = 500  # ids of one `IN (...)`; SQLite limits the parameters of a statement


class Simulated(NamedTuple):
    """The simulated time of an answer, and the number of its events."""

    time: datetime
    num_events: int


def move_to(url: str, recorded: Mapping[str, Simulated], patience: float = _PATIENCE) -> None:
    """Give each answer its simulated time, and keep the time from the answer to its events.

    Waits until all these answers and events are in the database. Raises `Unavailable` if some are missing after
    `patience` seconds, or the database is away.
    """
    engine = open_engine(checked_url(url))
    deadline = time.monotonic() + patience
    try:
        migrate(engine)
        waiting = list(recorded)
        while waiting:
            chunk, waiting = waiting[:_CHUNK], waiting[_CHUNK:]
            while missing := _move({one: recorded[one] for one in chunk}, engine):
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"--feedback {shown_url(engine.url)}: {missing} answers or events have not arrived in this "
                        f"database after {patience:.0f} s; give the database of the service"
                    )
                time.sleep(_POLL)
    finally:
        engine.dispose()


def _move(recorded: Mapping[str, Simulated], engine: Engine) -> int:
    """Move these answers and their events if all are there; return the number of missing ones."""
    with transaction(engine, is_write=True) as connection:
        which = events.c.answer_id.in_(recorded)
        query = select(answers.c.answer_id, answers.c.time).where(answers.c.answer_id.in_(recorded))
        present = {answer: at for answer, at in connection.execute(query)}
        num_events = connection.scalar(select(func.count()).select_from(events).where(which)) or 0
        expected = len(recorded) + sum(one.num_events for one in recorded.values())
        if len(present) + num_events < expected:
            return expected - len(present) - num_events
        _update(connection, answers, "answer_id", {answer: one.time for answer, one in recorded.items()})
        query = select(events.c.event_id, events.c.answer_id, events.c.time).where(which)
        moved = {
            event: recorded[answer].time + (at - present[answer]) for event, answer, at in connection.execute(query)
        }
        _update(connection, events, "event_id", moved)
        return 0


def _update(connection: Connection, table: Table, key: str, times: Mapping[str, datetime]) -> None:
    if times:
        update = table.update().where(table.c[key] == bindparam("id")).values(time=bindparam("at"))
        connection.execute(update, [{"id": one, "at": at} for one, at in times.items()])
