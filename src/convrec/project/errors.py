"""Errors that end a command. Each has an exit status, which tells a scheduler whether to retry."""

import errno
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NoReturn

EXIT_BUG = 1  # of Python, for an error that nothing handles
EXIT_BAD_INPUT = 2
EXIT_NO_SPACE = 74  # EX_IOERR of sysexits.h
EXIT_UNAVAILABLE = 75  # EX_TEMPFAIL
EXIT_INTERRUPTED = 128 + signal.SIGINT  # the status that a shell reports for a command ended by Ctrl-C
EXIT_PIPE = 128 + signal.SIGPIPE  # of a command whose output is no longer read
EXIT_STOPPED = 128 + signal.SIGTERM

# Messages of libraries for a machine or a server that is not as it should be. Their case does not count.
_DISK_FULL = ("no space left on device", "disk quota exceeded", "database or disk is full")
_LOST_GPU = (  # of CUDA and NCCL, for a device that may be back at the next start: not an error of the program
    "all cuda-capable devices are busy or unavailable",
    "cuda driver initialization failed",
    "cuda unknown error",
    "gpu has fallen off the bus",
    "hardware error",
    "no cuda-capable device is detected",
    "nccl error: remote process exited",
    "nccl error: unhandled system error",
    "uncorrectable ecc error",
    "uncorrectable nvlink error",
)
_LOST_PROCESS = ("gloo/transport", "connection was likely closed")  # of gloo and torch's store
# SQLite's, for a file that it cannot use.
_DAMAGED = ("file is not a database", "database disk image is malformed", "malformed database schema", "no such table")
_AWAY = (  # of HTTP and storage clients, for a server that does not answer or fails
    "connection aborted",
    "connection refused",
    "connection reset",
    "could not connect to the endpoint",
    "max retries exceeded with url",
    "name or service not known",
    "read timed out",
    "temporary failure in name resolution",
    "failed with error code 500",
    "failed with error code 502",
    "failed with error code 503",
    "failed with error code 504",
)
_DVC_BUSY = ("unable to acquire lock", "is being blocked by")  # while another DVC process uses the same files
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "bad_alloc")  # CUDA, torch, C++
_UNUSABLE_PATH = (
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
)


class InputError(Exception):
    """Bad parameters, data or environment; the message names the field, its value and the remedy.

    The command line prints the message alone (no traceback) and exits with status 2. A retry cannot help.
    """


class Unavailable(RuntimeError):
    """A server or a GPU is unavailable now and may be back later. Exit status 75: a retry can help."""


class NoSpace(RuntimeError):
    """The disk is full. Exit status 74: a retry helps only after space has been freed."""


class Stopped(RuntimeError):
    """A signal stopped the work at a checkpoint; the next start resumes there. Exit status 143, or 130 after Ctrl-C."""

    def __init__(self, message: str, number: int = signal.SIGTERM):
        super().__init__(message)
        self.status = 128 + number


def leave(status: int) -> NoReturn:
    """End the process at once, without Python's exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(status)


def exit_status(error: BaseException) -> int | None:
    """Return the exit status of one of the errors above; None for any other error, which is a bug."""
    if isinstance(error, Stopped):
        return error.status
    statuses = {InputError: EXIT_BAD_INPUT, NoSpace: EXIT_NO_SPACE, Unavailable: EXIT_UNAVAILABLE}
    return next((status for kind, status in statuses.items() if isinstance(error, kind)), None)


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes, the latest first."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _says(text: str, messages: Iterable[str]) -> bool:
    return any(words in text.lower() for words in messages)


def is_damaged(error: BaseException) -> bool:
    """Return whether an SQLite error says that the database is damaged, so a retry cannot help."""
    return _says(str(error), _DAMAGED)


def says_out_of_memory(text: str) -> bool:
    """Return whether an error's message or a command's output says that memory did not suffice."""
    return _says(text, _OUT_OF_MEMORY)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error or one of its causes says that memory did not suffice."""
    return any(isinstance(one, MemoryError) or says_out_of_memory(str(one)) for one in causes(error))


def outside_cause(error: BaseException) -> NoSpace | Unavailable | InputError | None:
    """Return the environment problem behind a library's error, else None.

    The disk is full, the GPU or another process of a training is lost, a server is away, a database is damaged, another
    DVC process works there, or a file or folder cannot be used as it was to be.
    """
    for one in causes(error):
        text = str(one)
        first = f"({next(iter(text.splitlines()), '')[:200]})"
        full = isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or _says(text, _DISK_FULL):
            return NoSpace(f"the disk is full {first}; free some space and start again: finished work is kept")
        if isinstance(one, RuntimeError) and _says(text, _LOST_GPU):
            return Unavailable(f"the GPU is lost {first}; start again once it is back")
        if isinstance(one, RuntimeError) and _says(text, _LOST_PROCESS):
            return Unavailable(f"another process of this training has ended {first}; see its output, then start again")
        if is_damaged(one):
            return InputError(f"a database is damaged {first}; restore its file from a backup, or remove it")
        if _says(text, _AWAY):
            return Unavailable(f"a server is away {first}; start again once it is back")
        if _says(text, _DVC_BUSY):
            return Unavailable(
                f"another DVC process is using this folder ({' '.join(text.split())}); wait until it ends"
            )
    if isinstance(error, OSError) and error.errno in _UNUSABLE_PATH and error.filename is not None:
        return InputError(
            f"{error.filename}: {error.strerror}; choose another path, or change that file or its permissions"
        )
    return None
