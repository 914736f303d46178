"""Finished lists on disk, so that a generation that was killed goes on where it was."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from convrec.generation.engine import TokenIds


def prompt_digest(prompt: TokenIds) -> str:
    """Return what stands for a prompt's tokens in a journal."""
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:32]


class ListJournal:
    """A file of JSON lines, each the digest of a prompt and its list.

    A line that was cut short, by a crash or a full disk, is no line: its prompt is asked again.
    """

    def __init__(self, path: Path):
        self._path = path

    def read(self) -> dict[str, str]:
        """Return the lists by the digest of their prompt."""
        lists: dict[str, str] = {}
        for line in self._path.read_bytes().split(b"\n") if self._path.is_file() else ():
            try:
                row = json.loads(line)
                lists[row["prompt"]] = row["list"]
            except (ValueError, TypeError, KeyError):
                continue
        return lists

    def append(self, lists: Mapping[str, str]) -> None:
        """Add lists by the digest of their prompt; they are kept once this returns."""
        rows = "".join(json.dumps({"prompt": digest, "list": text}) + "\n" for digest, text in lists.items())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as stream:
            if stream.tell():
                stream.seek(-1, 2)
                # A line before that was cut short is ended, so that it takes none of these with it.
                rows = rows if stream.read(1) == b"\n" else "\n" + rows
            stream.write(rows.encode())
