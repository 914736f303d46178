"""API keys: a file of names and SHA-256 hashes, and a limit of requests for each key."""

import hashlib
import hmac
import re
import secrets
import threading
import time
from pathlib import Path

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from convrec.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(rf"({_NAME.pattern}) ([0-9a-f]{{64}})")


class Keys:
    """The keys of a file with a line `NAME SHA256` for each; a changed file is read again, so a key can be revoked."""

    def __init__(self, path: Path):
        """Raise `InputError` if the file cannot be read, or a line is no key."""
        self._path, self._lock = path, threading.Lock()
        self._version = self._stat()
        self._hashes = _read(path)

    def name_of(self, key: str) -> str | None:
        """Return the name of a key, else None. Takes the same time for every key."""
        given = _hash(key)
        found = None
        for name, known in self._current().items():
            if hmac.compare_digest(given, known):
                found = name
        return found

    def _current(self) -> dict[str, str]:
        with self._lock:
            version = self._stat()
            if version != self._version:
                self._hashes, self._version = _read(self._path), version
            return self._hashes

    def _stat(self) -> tuple[int, int]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise InputError(
                f"--keys {self._path}: {error.strerror}; `convrec serve --new-key NAME` adds a key"
            ) from None
        return stat.st_mtime_ns, stat.st_size


class RateLimit:
    """At most so many requests a minute for each key, in this process."""

    def __init__(self, per_minute: int):
        self._limit = RateLimitItemPerMinute(per_minute)
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def seconds_to_wait(self, name: str) -> int:
        """Count a request of this key; return 0 if it may be answered, else the seconds until another may be."""
        if self._limiter.hit(self._limit, name):
            return 0
        reset = self._limiter.get_window_stats(self._limit, name).reset_time
        return max(1, round(reset - time.time()))


def new_key(path: Path, name: str) -> str:
    """Append a new key to the file and return it; it is not stored and cannot be shown again.

    Raises `InputError` if the name is not usable or already has a key.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"--new-key {name!r:.80}: give 1 to 64 letters, digits, `.`, `_` or `-`")
    if path.exists() and name in _read(path):
        raise InputError(f"--new-key {name}: {path} has a key of this name; give another, or remove its line first")
    key = secrets.token_urlsafe(32)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{name} {_hash(key)}\n")
    return key


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()  # unsalted: a random key of 256 bits cannot be guessed


def _read(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--keys {path}: cannot be read ({error}); give a file of lines `NAME SHA256`") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line.strip())
        if match is None and line.strip():
            raise InputError(f"--keys {path}, line {number}: is not `NAME SHA256`; write it with --new-key")
        if match is not None:
            found[match[1]] = match[2]
    return found
