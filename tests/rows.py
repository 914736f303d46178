"""Canonical rows of conversations."""

from collections.abc import Iterable
from typing import Any


def make_row(
    prompt: str, liked: Iterable[tuple[str, int | None]] = (), text: str = "Hello", **more: Any
) -> dict[str, Any]:
    """Return a row with one message of the user; `more` are columns."""
    return {
        "conversation_id": prompt,
        "prompt_id": prompt,
        "user_id": "",
        "date": "",
        "messages": [{"role": "user", "content": text}],
        "groundtruth": [{"title": title, "year": year} for title, year in liked],
        "seen_titles": [],
        "disliked_titles": [],
        **more,
    }
