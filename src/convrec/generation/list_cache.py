"""The cache of finished lists, with which a killed generation resumes."""

import fcntl
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convrec.generation.constraint import ListRequest
from convrec.generation.engine import TokenIds


def request_digest(prompt: TokenIds, request: ListRequest | None) -> str:
    """Return the cache key of a prompt's tokens and its list's constraint."""
    asked: list[Any] = [prompt]
    if request is not None:
        allowed = None if request.allowed is None else sorted(request.allowed)
        asked += [request.length, sorted(request.banned), allowed]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]


class ListCache:
    """A file of JSON lines, each the digest of a request and its list.

    A line that was cut short, by a crash or a full disk, is no line: it is asked for again. Several processes may share
    the file.
    """

    def __init__(self, path: Path):
        self._path = path

    def read(self) -> dict[str, str]:
        """Return the lists by the digest of their request."""
        lists: dict[str, str] = {}
        for line in self._path.read_bytes().split(b"\n") if self._path.is_file() else ():
            try:
                row = json.loads(line)
                lists[row["request"]] = row["list"]
            except (ValueError, TypeError, KeyError):
                continue
        return lists

    def append(self, lists: Mapping[str, str]) -> None:
        """Add lists by the digest of their request; they are kept once this returns."""
        rows = "".join(json.dumps({"request": digest, "list": text}) + "\n" for digest, text in lists.items())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # until the file is closed
            if stream.tell():
                stream.seek(-1, 2)
                # End a truncated last line, so that it does not swallow the new ones.
                rows = rows if stream.read(1) == b"\n" else "\n" + rows
            stream.write(rows.encode())
