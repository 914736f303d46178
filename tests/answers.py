"""Answers of a service, and what users did with their items."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from convrec.service.feedback import Answer, Event, Shown, new_answer_id

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def make_answer(*items: str, name: str = "", minutes: float = 0, version: str = "3", **fields: Any) -> Answer:
    """Return an answer that shows items in the list `name`, so many minutes after noon unless `fields` have a time."""
    time = fields.get("time", NOON + timedelta(minutes=minutes))
    shown = tuple(Shown(name, rank, item, version) for rank, item in enumerate(items, start=1))
    given = {"answer_id": new_answer_id(time), "time": time, "shown": shown, "latency_seconds": 0.25}
    given |= {"user_id": None, "experiment": None, "arm": None, "messages": None}
    return Answer(**given | fields)


def answer_now(*items: str, **fields: Any) -> Answer:
    """Return an answer of now."""
    return make_answer(*items, time=datetime.now(UTC), **fields)


def make_event(answer: Answer, item: str, name: str, minutes: float = 1, event_id: str | None = None) -> Event:
    """Return an event of an item of the answer, so many minutes after noon."""
    listed = next((one.list for one in answer.shown if one.item_id == item), "")
    time = NOON + timedelta(minutes=minutes)
    return Event(event_id or uuid.uuid4().hex, answer.answer_id, listed, item, name, time)
