"""Atomic writing of files; links, devices and FIFOs are written through."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.project.errors import InputError

_REFUSED = {stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a block device"}


def check_target(path: Path, option: str = "") -> None:
    """Make the folder of a file that is to be written; raises `InputError` where no file can be written.

    That is a folder, a socket, a block device, or a place whose folder cannot be made. `option` is how the user gave
    the path, for the message.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:  # below /proc, for instance
        raise InputError(f"{option} {path}: its folder cannot be created; choose another path".lstrip()) from None
    if (kind := _kind(path)) in _REFUSED:
        raise InputError(f"{option} {path}: {_REFUSED[kind]}; name a file".lstrip())


def _kind(path: Path) -> int | None:
    """Return the kind of what the path, or the link there, names: the `S_IF...` bits; None for nothing."""
    try:
        return stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return None


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which takes the place of `path` once the block is done.

    A block that fails, by a full disk for instance, leaves `path` as it was and nothing beside it. A link stays, and
    what it names is replaced. A device or a FIFO (`/dev/stdout`) is yielded itself: it is written through. The folder
    is created. Raises `InputError` for a folder, a socket or a block device.
    """
    check_target(path)
    if _kind(path) in (stat.S_IFCHR, stat.S_IFIFO):
        yield path
        return
    target = path.resolve()
    new = target.with_name(f".{target.name}.{os.getpid()}.partial")
    new.unlink(missing_ok=True)  # of a process that was killed
    try:
        new.touch(exist_ok=False)  # never through somebody else's link
        yield new
        if target.exists():
            new.chmod(stat.S_IMODE(target.stat().st_mode))
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8 (see `replaced`)."""
    with replaced(path) as new:
        new.write_text(text, encoding="utf-8", newline="")


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes (see `replaced`)."""
    with replaced(path) as new:
        new.write_bytes(content)
