"""Validation of raw conversation rows, the same for every file format.

The functions `usable_...` return the canonical form of a cell, and raise `ValueError` saying what is wrong with it.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from convrec.data.catalog import Catalog, title_of
from convrec.data.conversations import ROLES, prompt_key, usable_role
from convrec.data.matching import Truth, truth_key
from convrec.data.mentions import Mentions
from convrec.data.quarantine import Quarantine, as_text
from convrec.data.times import NO_TIME, read_time
from convrec.data.titles import normalise_text, usable_id, usable_title, usable_user
from convrec.project.text import is_clean

_SHOWN = 20  # characters of a wrong role
BAD_DATE = f"date is {NO_TIME}"
PLACEHOLDER = "a message was deleted or removed"  # reason for which a conversation cannot be used
_PLACEHOLDER = re.compile(r"\s*\[\s*(?:deleted|removed)(?:\s+by\s[^\[\]]{1,100})?\s*\]\s*", re.IGNORECASE)
LONGEST_CONVERSATION = 1_000_000  # characters of its messages together
MOST_MESSAGES = 10_000


def is_placeholder(text: str) -> bool:
    """Return whether a text is what Reddit and others put in the place of a deleted one, such as `[removed]`."""
    return _PLACEHOLDER.fullmatch(text) is not None


def usable_messages(value: Any, needs_user: bool = True) -> list[dict[str, str]]:
    """Return the messages as {role, content}, the content normalised; blank ones are left out.

    Without `needs_user`, there may be none of the user, or none at all.
    """
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
        content = normalise_text(content)
        if is_placeholder(content):
            raise ValueError(PLACEHOLDER)
        if content.strip():
            messages.append({"role": role, "content": content})
    if len(messages) > MOST_MESSAGES:
        raise ValueError(f"a conversation of more than {MOST_MESSAGES:,} messages")
    if sum(len(message["content"]) for message in messages) > LONGEST_CONVERSATION:
        raise ValueError(f"a conversation of more than {LONGEST_CONVERSATION:,} characters")
    if needs_user and not any(message["role"] == "user" for message in messages):
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
    """Return the day in UTC as YYYY-MM-DD of what `read_time` reads, "" where there is none."""
    if value is None or value == "" or value != value:
        return ""
    seconds = read_time(value)
    if seconds is None:
        raise ValueError(BAD_DATE)
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d")


def usable_rows(
    raw_rows: Iterable[tuple[str, Mapping[str, Any]]],
    catalog: Catalog,
    quarantine: Quarantine,
    line_column: str | None = None,
    needs_user: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield the canonical rows of raw ones, each with where it stood; the others go to the quarantine.

    A raw row has `messages` and `groundtruth`; `date`, `seen_titles`, `disliked_titles`, `conversation_id`, `prompt_id`
    and `user_id` are optional. Items are given as `usable_item` reads them, or as {id} of the catalog. Without
    `seen_titles`, seen is what the messages name, as in service. Disliked items are seen, too. `needs_user` is as in
    `usable_messages`.
    """
    finder: Mentions | None = None
    for where, raw in raw_rows:
        quarantine.count("conversations")
        try:
            messages, date = usable_messages(raw.get("messages"), needs_user), usable_date(raw.get("date"))
            conversation = usable_id(raw.get("conversation_id"), "conversation_id")
            prompt, user = usable_id(raw.get("prompt_id"), "prompt_id"), usable_user(raw.get("user_id"))
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
            quarantine.add("conversations", where, str(problem), raw.get("date") if str(problem) == BAD_DATE else raw)
            continue
        key = prompt_key(messages)
        seen, disliked = ([title for _, title in items] for items in (seen_items, disliked_items))
        given = raw.get("seen_titles")
        if given is None or given != given:
            finder = finder or Mentions(catalog)
            seen = finder.of_messages(messages)
        yield {
            "conversation_id": conversation or key,
            "prompt_id": prompt or key,
            "user_id": user,
            "date": date,
            "messages": messages,
            "groundtruth": list(groundtruth.values()),
            "seen_titles": list(dict.fromkeys([*seen, *disliked])),
            "disliked_titles": disliked,
        }


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
    if values is None or values != values:
        return []
    if not isinstance(values, list):
        raise ValueError(f"{field} is no list")
    quarantine.count(field, len(values))
    found = []
    for value in values:
        try:
            given = value.get("id") if isinstance(value, Mapping) else None
            index = catalog.index_of_id(given) if isinstance(given, str) else None  # also one that reads as missing
            if index is not None or (own_id := usable_id(given, "id")):
                index = catalog.index_of_id(own_id) if index is None else index
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
