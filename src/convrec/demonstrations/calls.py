"""The cache of chat calls on disk, so that a restart never repeats, or pays for, an answered call."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from convrec.project.errors import InputError

BUSY_SECONDS = 60  # how long a process waits for another's commit, which takes milliseconds

_CREATE = """
CREATE TABLE IF NOT EXISTS calls (
    key TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    answer TEXT,
    finish_reason TEXT,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cost REAL NOT NULL,
    created TEXT NOT NULL
)"""

# The first answer is kept; the costs of all calls add up.
_ADD = """
INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
    answer = CASE WHEN answer IS NULL THEN excluded.answer ELSE answer END,
    finish_reason = CASE WHEN answer IS NULL THEN excluded.finish_reason ELSE finish_reason END,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens,
    cost = cost + excluded.cost"""

_GET = """
SELECT answer, finish_reason, prompt_tokens, completion_tokens, cost FROM calls
WHERE key = ? AND answer IS NOT NULL"""

_SPENT = """
SELECT count(answer), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0), coalesce(sum(cost), 0.0)
FROM calls"""


class ChatAnswer(NamedTuple):
    """A model's answer, None where it has no text, with its tokens and its cost in the currency of the prices."""

    text: str | None
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cost: float


class Spent(NamedTuple):
    """Sums over all calls of a file; `calls` counts the answers."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float


def canonical(request: Mapping[str, Any]) -> str:
    """Return the one JSON text of a request's content."""
    return json.dumps(request, sort_keys=True, separators=(",", ":"), allow_nan=False)


def request_key(request: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON of a request's content."""
    return hashlib.sha256(canonical(request).encode()).hexdigest()


class CallStore:
    """Answers by request in one SQLite file, each committed on its own; several processes may share the file.

    Raises InputError for a file that is something else, or that cannot be written.
    """

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._explaining_errors():
            self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            with self._explaining_errors():
                tables = self._database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
                if tables and ("calls",) not in tables:
                    raise sqlite3.DatabaseError("it has tables, but none of calls")
                self._database.execute(_CREATE)
        except InputError:
            self._database.close()
            raise

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Raise SQLite's errors as `InputError`: full disks, damaged files, files of another kind."""
        try:
            yield
        except sqlite3.Error as error:
            raise InputError(
                f"{self.path}: not usable as the database of chat calls ({error}); mend that, or move the file away"
            ) from None

    def get(self, key: str) -> ChatAnswer | None:
        """Return the answer to a request, or None; its tokens and cost are of all calls for it."""
        with self._explaining_errors():
            row = self._database.execute(_GET, (key,)).fetchone()
        return ChatAnswer(*row) if row else None

    def put(self, key: str, request: Mapping[str, Any], answer: ChatAnswer) -> None:
        """Record an answer, on disk when this returns. An earlier one with a text stays; the costs add up."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        with self._explaining_errors():
            self._database.execute(_ADD, (key, canonical(request), *answer, created))

    def spent(self) -> Spent:
        """Return what all calls ever recorded in the file took."""
        with self._explaining_errors():
            return Spent(*self._database.execute(_SPENT).fetchone())

    def close(self) -> None:
        self._database.close()
