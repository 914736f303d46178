"""A journal: a file of JSON lines that is locked while the process that writes it lives."""

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import orjson

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC


class JournalFile:
    """A journal that this process has locked until `close`."""

    def __init__(self, path: Path, descriptor: int):
        self.path, self._descriptor = path, descriptor

    @classmethod
    def start(cls, path: Path, head: Any) -> Self:
        """Return a new journal, which gets its name once it is locked and has its first line.

        Raises `OSError` if the disk is full.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_suffix(".new")
        descriptor = os.open(hidden, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _write(descriptor, orjson.dumps(head) + b"\n")
            hidden.rename(path)
            return cls(path, descriptor)
        except BaseException:
            os.close(descriptor)
            hidden.unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, path: Path) -> Self | None:
        """Return the journal that a process left; None if that process is alive, or another one has taken it.

        Raises `OSError` if the file cannot be used.
        """
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # not removed since it was opened
                return cls(path, descriptor)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def append(self, record: Any) -> None:
        """Write a record with a single system call. Raises `OSError` if the disk is full."""
        # The first newline ends a record that was cut short by a full disk, so that this one stays readable.
        _write(self._descriptor, b"\n" + orjson.dumps(record) + b"\n")

    def close(self) -> None:
        """Release the lock, so that another process can take the journal."""
        os.close(self._descriptor)


def _write(descriptor: int, line: bytes) -> None:
    if os.write(descriptor, line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def lines(path: Path, first: int = 0, last: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines between two bytes, each with the byte after it; no empty ones, nor a last one without its end."""
    with path.open("rb") as stream:
        stream.seek(first)
        for line in stream:
            if not line.endswith(b"\n") or (last is not None and first >= last):
                return
            first += len(line)
            if line != b"\n":
                yield first, line
