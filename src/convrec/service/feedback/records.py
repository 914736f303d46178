"""What is recorded of the service: its answers, the items they showed, and what users did with these items."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

EventName = Literal["accepted", "rejected", "clicked", "watched", "hidden", "withdrawn"]
# The last of these is an item's state; `clicked` and `watched` are facts beside it.
STATES: tuple[EventName, ...] = ("accepted", "rejected", "hidden", "withdrawn")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Shown:
    """One item of an answer's list.

    `list` names the list within the answer: "champion" or "challenger", or "" for a single list. `rank` counts from 1.
    `version` is the registered version ("3") or the model's name that contributed the item.
    """

    list: str
    rank: int
    item_id: str
    version: str


@dataclass(frozen=True)
class Answer:
    """One answer of the service; an answer without `shown` is an empty one.

    `time` is aware. `arm` is "champion" or "challenger" during an experiment. `messages` have no secrets, and are None
    unless conversations are stored.
    """

    answer_id: str
    time: datetime
    user_id: str | None
    experiment: str | None
    arm: str | None
    latency_seconds: float
    messages: Sequence[dict[str, Any]] | None
    shown: tuple[Shown, ...]


@dataclass(frozen=True)
class Event:
    """What a user did with an item of an answer; an event whose `event_id` is known is the same event again."""

    event_id: str
    answer_id: str
    list: str
    item_id: str
    event: EventName
    time: datetime


def new_answer_id(now: datetime) -> str:
    """Return a UUIDv7 (RFC 9562, section 5.7) as 32 hexadecimal digits: its first 48 bits are the time in ms."""
    milliseconds = (now - _EPOCH) // timedelta(milliseconds=1)
    value = milliseconds << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return f"{value:032x}"


def usable_answer_id(text: str) -> str:
    """Return an answer's id as `new_answer_id` has it, however the UUID is spelt; "" for any other text.

    Clients that parse UUIDs send them with hyphens, capitals, braces or `urn:uuid:` (RFC 9562, section 4).
    """
    with suppress(ValueError):
        if (given := UUID(text.lower())).version == 7:
            return given.hex
    return ""
