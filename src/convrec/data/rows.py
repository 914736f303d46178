"""Validation of raw conversation rows, the same for every file format.

The functions `usable_...` return the canonical form of a cell, and raise `ValueError` saying what is wrong with it.
"""

import datetime
import re
from collections.abc import Iterable, Mapping
from typing import Any

from convrec.data.catalog import Catalog, title_of
from convrec.data.conversations import ROLES, prompt_key, usable_role
from convrec.data.matching import Truth, truth_key
from convrec.data.mentions import Mentions
from convrec.data.quarantine import Quarantine, as_text
from convrec.data.titles import usable_id, usable_title
from convrec.project.text import is_clean

FIRST_YEAR, LAST_YEAR = 1990, 2099
_BAD_DATE = f"date is no day from {FIRST_YEAR} to {LAST_YEAR}, such as 2022-12-31"
_SHOWN = 20  # characters of a wrong role
LONGEST_CONVERSATION = 1_000_000  # characters of its messages together
MOST_MESSAGES = 10_000
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def usable_messages(value: Any) -> list[dict[str, str]]:
    """Return the messages as {role, content}; blank ones are left out."""
    if not isinstance(value, list) or not all(isinstance(message, Mapping) for message in value):
        raise ValueError("messages are no list of {role, content}")
    messages = []
    for message in value:
        role, content = usable_role(message.get("role")), message.get("content")
        if role is None:
            raise ValueError(f"a role is {as_text(message.get('role'))[:_SHOWN]!r}, none of {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise ValueError("a message's content is no text")
        if not is_clean(content):
            raise ValueError("NUL or half a character")
        if content.strip():
            messages.append({"role": role, "content": content})
    if len(messages) > MOST_MESSAGES:
        raise ValueError(f"a conversation of more than {MOST_MESSAGES:,} messages")
    if sum(len(message["content"]) for message in messages) > LONGEST_CONVERSATION:
        raise ValueError(f"a conversation of more than {LONGEST_CONVERSATION:,} characters")
    if not any(message["role"] == "user" for message in messages):
        raise ValueError("no words of the user")
    return messages


def usable_item(value: Any, line_column: str | None = None) -> dict[str, Any]:
    """Return an item as {title, year}; it is given so, or as a pair, or as a text `Title (Year)` or `Title`.

    What it has in `line_column` becomes part of the title (see `catalog.title_of`).
    """
    if isinstance(value, Mapping):
        title, year = title_of(value, line_column)
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


def usable_rows(
    raw_rows: Iterable[tuple[str, Mapping[str, Any]]],
    catalog: Catalog,
    quarantine: Quarantine,
    line_column: str | None = None,
) -> list[dict[str, Any]]:
    """Return the canonical rows of raw ones, each with where it stood; the others go to the quarantine.

    A raw row has `messages` and `groundtruth`; `date`, `seen_titles`, `disliked_titles`, `conversation_id`, `prompt_id`
    and `user_id` are optional. Items are given as `usable_item` reads them, or as {id} of the catalog. Without
    `seen_titles`, seen is what the messages name, as in service. Disliked items are seen, too.
    """
    rows: list[dict[str, Any]] = []
    finder: Mentions | None = None
    for where, raw in raw_rows:
        quarantine.count("conversations")
        try:
            messages, date = usable_messages(raw.get("messages")), usable_date(raw.get("date"))
            conversation = usable_id(raw.get("conversation_id"), "conversation_id")
            prompt, user = usable_id(raw.get("prompt_id"), "prompt_id"), usable_id(raw.get("user_id"), "user_id")
            truths, seen_items, disliked_items = (
                _usable_items(field, raw, where, catalog, quarantine, line_column)
                for field in ("groundtruth", "seen_titles", "disliked_titles")
            )
            if not truths:
                raise ValueError("no ground truth")
            groundtruth: dict[int | Truth, dict[str, Any]] = {}  # each item once
            for item, _ in truths:
                groundtruth.setdefault(truth_key(Truth(**item), catalog), item)
        except ValueError as problem:
            quarantine.add("conversations", where, str(problem), raw)
            continue
        key = prompt_key(messages)
        seen, disliked = ([title for _, title in items] for items in (seen_items, disliked_items))
        if raw.get("seen_titles") is None:
            finder = finder or Mentions(catalog)
            seen = finder.of_messages(messages)
        rows.append(
            {
                "conversation_id": conversation or key,
                "prompt_id": prompt or key,
                "user_id": user,
                "date": date,
                "messages": messages,
                "groundtruth": list(groundtruth.values()),
                "seen_titles": list(dict.fromkeys([*seen, *disliked])),
                "disliked_titles": disliked,
            }
        )
    return rows


def _usable_items(
    field: str,
    raw: Mapping[str, Any],
    where: str,
    catalog: Catalog,
    quarantine: Quarantine,
    line_column: str | None,
) -> list[tuple[dict[str, Any], str]]:
    """Return the usable items of a field, and how each is written as a seen one; the others go to the quarantine.

    A seen title counts whatever its year, the line of an item that is given by its id is that item alone.
    """
    values = raw.get(field)
    if values is None:
        return []
    if not isinstance(values, list):
        raise ValueError(f"{field} is no list")
    quarantine.count(field, len(values))
    found = []
    for value in values:
        try:
            if own_id := usable_id(value.get("id"), "id") if isinstance(value, Mapping) else "":
                index = catalog.index_of_id(own_id)
                if index is None:
                    raise ValueError("the catalog has no item of this id")
                item = catalog.items[index]
                found.append(({"title": item.title, "year": item.year}, str(item)))
            else:
                named = usable_item(value, line_column)
                found.append((named, named["title"]))
        except ValueError as problem:
            quarantine.add(field, where, str(problem), value)
    return found
