"""What a row of conversations must look like before anything is made of it, whatever file it comes from.

The functions `usable_...` return the canonical form of a cell, and raise `ValueError` saying what is wrong with it.
"""

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

from convrec.data.conversations import prompt_key
from convrec.data.quarantine import Quarantine
from convrec.data.titles import is_clean, usable_id, usable_title

ROLES = ("system", "user", "assistant")
FIRST_YEAR, LAST_YEAR = 1990, 2099
_BAD_DATE = f"date is no day from {FIRST_YEAR} to {LAST_YEAR}"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def usable_messages(value: Any) -> list[dict[str, str]]:
    """Return the messages as {role, content}; blank ones are left out."""
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError("messages are no list of {role, content}")
    messages = []
    for message in value:
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"a role is none of {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise ValueError("a message's content is no text")
        if not is_clean(content):
            raise ValueError("NUL or half a character")
        if content.strip():
            messages.append({"role": role, "content": content})
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("no words of the user")
    return messages


def usable_item(value: Any) -> dict[str, Any]:
    """Return an item as {title, year}; it is given so, or as a pair, or as a text `Title (Year)` or `Title`."""
    if isinstance(value, Mapping):
        title, year = usable_title(value.get("title"), value.get("year"))
    elif isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise ValueError("no pair of title and year")
        title, year = usable_title(*value)
    elif isinstance(value, str):
        title, year = usable_title(value, None)
    else:
        raise ValueError("no item: neither text, nor pair, nor {title, year}")
    return {"title": title, "year": year}


def usable_date(value: Any) -> str:
    """Return the day in UTC as YYYY-MM-DD, "" where there is none.

    It is given as a date, a time (one without a zone is in UTC), ISO 8601 text, or seconds since 1970.
    """
    if value is None or value == "" or value != value:
        return ""
    try:
        if isinstance(value, str):
            text = value.strip()
            value = float(text) if _NUMBER.fullmatch(text) else datetime.datetime.fromisoformat(text)
        if isinstance(value, (int, float)):
            value = datetime.datetime.fromtimestamp(value, datetime.UTC)
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            value = value.astimezone(datetime.UTC)
        if not isinstance(value, datetime.date):
            raise ValueError
        day = value.strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        raise ValueError(_BAD_DATE) from None
    if not FIRST_YEAR <= value.year <= LAST_YEAR:
        raise ValueError(_BAD_DATE)
    return day


def usable_rows(raw_rows: Iterable[tuple[str, Mapping[str, Any]]], quarantine: Quarantine) -> list[dict[str, Any]]:
    """Return the canonical rows of raw ones, each with where it stood; the others go to the quarantine.

    A raw row has `messages` and `groundtruth`; `date`, `seen_titles` and `conversation_id` are optional.
    """
    rows = []
    for where, raw in raw_rows:
        quarantine.count("conversations")
        try:
            rows.append(_canonical(raw, where, quarantine))
        except ValueError as problem:
            quarantine.add("conversations", where, str(problem), raw)
    return rows


def _canonical(raw: Mapping[str, Any], where: str, quarantine: Quarantine) -> dict[str, Any]:
    messages, date = usable_messages(raw.get("messages")), usable_date(raw.get("date"))
    conversation = usable_id(raw.get("conversation_id"), "conversation_id")
    truths = _usable_items("groundtruth", raw.get("groundtruth"), where, quarantine)
    if not truths:
        raise ValueError("no ground truth")
    seen = _usable_items("seen_titles", raw.get("seen_titles"), where, quarantine)
    key = prompt_key(messages)
    return {
        "conversation_id": conversation or key,
        "prompt_id": key,
        "date": date,
        "messages": messages,
        "groundtruth": truths,
        "seen_titles": [item["title"] for item in seen],
    }


def _usable_items(field: str, values: Any, where: str, quarantine: Quarantine) -> list[dict[str, Any]]:
    """Return the usable items of a list; each of the others goes to the quarantine by itself."""
    if values is None:
        return []
    if not isinstance(values, list):
        raise ValueError(f"{field} is no list")
    items = []
    quarantine.count(field, len(values))
    for value in values:
        try:
            items.append(usable_item(value))
        except ValueError as problem:
            quarantine.add(field, where, str(problem), value)
    return items
