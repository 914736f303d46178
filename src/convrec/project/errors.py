"""Errors that end a command. Each has an exit status, which tells a scheduler whether to retry."""

import errno
import os
import re
import signal
import sys
from contextlib import suppress
from typing import NoReturn

EXIT_BUG = 1  # of Python, for an error that nothing handles
EXIT_BAD_INPUT = 2
EXIT_NO_SPACE = 74  # EX_IOERR of sysexits.h
EXIT_UNAVAILABLE = 75  # EX_TEMPFAIL
EXIT_INTERRUPTED = 128 + signal.SIGINT  # the status that a shell reports for a command ended by Ctrl-C
EXIT_PIPE = 128 + signal.SIGPIPE  # of a command whose output is no longer read
EXIT_STOPPED = 128 + signal.SIGTERM

# What the messages of libraries say about the machine, its disk and servers; their case does not count.
_DISK_FULL = "no space left on device|disk quota exceeded|database or disk is full"
_LOST_GPU = (  # of CUDA and NCCL, for a device that may be back at the next start: not an error of the program
    "all CUDA-capable devices are busy or unavailable|CUDA driver initialization failed|CUDA unknown error|"
    "GPU has fallen off the bus|hardware error|no CUDA-capable device is detected|"
    "NCCL error: (remote process exited|unhandled system error)|uncorrectable (ECC|NVLink) error"
)
_LOST_PROCESS = "gloo/transport|connection was likely closed"  # of gloo and torch's store
# of SQLite
_DAMAGED = "file is not a database|database disk image is malformed|malformed database schema|no such table"
_AWAY = (  # of HTTP and storage clients, for a server that does not answer or fails
    "connection (aborted|refused|reset)|could not connect to the endpoint|max retries exceeded with url|"
    "name or service not known|read timed out|temporary failure in name resolution|failed with error code 50[0234]"
)
_DVC_BUSY = "unable to acquire lock|is being blocked by"
_OUT_OF_MEMORY = "out of memory|can(no|')t allocate memory|bad_alloc"  # of CUDA, torch and C++


class Reported(Exception):
    """An error that ends a command with its message alone, without a traceback, and with its exit status."""

    status: int = EXIT_BUG


class InputError(Reported):
    """Bad parameters, data or environment; the message names the field, its value and the remedy.

    The command line prints the message alone (no traceback) and exits with status 2. A retry cannot help.
    """

    status = EXIT_BAD_INPUT


class Unavailable(Reported):
    """A server or a GPU is unavailable now and may be back later. Exit status 75: a retry can help."""

    status = EXIT_UNAVAILABLE


class NoSpace(Reported):
    """The disk is full. Exit status 74: a retry helps only after space has been freed."""

    status = EXIT_NO_SPACE


class Stopped(Reported):
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


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and its chain of causes, the latest first."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _says(text: str, words: str) -> bool:
    return re.search(words, text, re.IGNORECASE) is not None


def is_damaged(error: BaseException) -> bool:
    """Return whether an SQLite error says that the database is damaged, so a retry cannot help."""
    return _says(str(error), _DAMAGED)


def says_out_of_memory(text: str) -> bool:
    """Return whether an error's message or a command's output says that memory did not suffice."""
    return _says(text, _OUT_OF_MEMORY)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error or one of its causes says that memory did not suffice."""
    return any(isinstance(one, MemoryError) or says_out_of_memory(str(one)) for one in causes(error))


_OUTSIDE: tuple[tuple[str, type[Reported], str], ...] = (
    (_DISK_FULL, NoSpace, "the disk is full ({}); free some space and start again: finished work is kept"),
    (_LOST_GPU, Unavailable, "the GPU is lost ({}); start again once it is back"),
    (_LOST_PROCESS, Unavailable, "another process of this training has ended ({}); see its output, then start again"),
    (_DAMAGED, InputError, "a database is damaged ({}); restore its file from a backup, or remove it"),
    (_AWAY, Unavailable, "a server is away ({}); start again once it is back"),
    (_DVC_BUSY, Unavailable, "another DVC process is using this folder ({}); wait until it ends"),
)


def outside_cause(error: BaseException) -> Reported | None:
    """Return the environment problem behind a library's error, else None.

    The disk is full, the GPU or another process of a training is lost, a server is away, a database is damaged, another
    DVC process works there, or a file or folder cannot be used as it was to be.
    """
    for one in causes(error):
        for words, meaning, message in _OUTSIDE:
            if _says(str(one), words):
                return meaning(message.format(" ".join(str(one).split())[:300]))
    kinds = (PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
    numbers = (errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS)
    if isinstance(error, OSError) and error.filename and (isinstance(error, kinds) or error.errno in numbers):
        text = f"{error.filename}: {error.strerror}"
        return InputError(f"{text}; choose another path, or change that file or its permissions")
    return None


def reported_error(error: BaseException) -> Reported | None:
    """Return the error to report in one message: this one, or the environment problem behind it; None for a bug."""
    return error if isinstance(error, Reported) else outside_cause(error)
