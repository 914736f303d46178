"""The cache of chat calls on disk, so that a restart never repeats, or pays for, an answered call."""

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

BUSY_SECONDS = 60  # how long a process waits for another's commit, which takes milliseconds

_CREATE = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    answer TEXT NOT NULL,
    finish_reason TEXT,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    created TEXT NOT NULL
)"""
# The first answer is kept; the tokens of all calls add up.
_PUT = """
INSERT INTO calls (key, request, answer, finish_reason, prompt_tokens, completion_tokens, created)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens"""
_GET = "SELECT answer, finish_reason, prompt_tokens, completion_tokens FROM calls WHERE key = ?"
_SPENT = "SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0) FROM calls"


class ChatAnswer(NamedTuple):
    """A model's answer, with its tokens."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


class Spent(NamedTuple):
    """Sums over all calls of a file."""

    calls: int
    prompt_tokens: int
    completion_tokens: int


def _canonical(request: Mapping[str, Any]) -> tuple[str, str]:
    """Return the one JSON text of a request's content, and its SHA-256, the key of the answer."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text, hashlib.sha256(text.encode()).hexdigest()


class CallStore:
    """Answers by request in one SQLite file, each committed on its own; several processes may share the file."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._database.execute(_CREATE)

    def get(self, request: Mapping[str, Any]) -> ChatAnswer | None:
        """Return the answer to a request, or None."""
        row = self._database.execute(_GET, (_canonical(request)[1],)).fetchone()
        return ChatAnswer(*row) if row else None

    def put(self, request: Mapping[str, Any], answer: ChatAnswer) -> None:
        """Record an answer, on disk when this returns."""
        text, key = _canonical(request)
        self._database.execute(_PUT, (key, text, *answer, datetime.now(UTC).isoformat(timespec="seconds")))

    def spent(self) -> Spent:
        """Return what all calls ever recorded in the file took."""
        return Spent(*self._database.execute(_SPENT).fetchone())

    def close(self) -> None:
        self._database.close()
