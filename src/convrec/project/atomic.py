"""Atomic writing of files; what is no regular file, as a device or a FIFO, is written through."""

import filecmp
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from convrec.project.errors import InputError

logger = logging.getLogger(__name__)


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Raise `InputError` where the file system lets nobody make files, as below /proc."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"{path}: no file can be made there; choose another path") from None


def check_target(path: Path, option: str = "") -> None:
    """Make the folder of a file that is to be written; raises `InputError` if the path itself is a folder.

    `option` is how the user gave the path, for the message.
    """
    with _refused(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise InputError(f"{option} {path}: a folder; name a file".lstrip())


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which takes the place of `path` once the block is done.

    A block that fails, by a full disk for instance, leaves `path` as it was and nothing beside it. A link stays, and
    what it names is replaced. A device or a FIFO (`/dev/stdout`) is yielded itself: it is written through. The folder
    is created. Raises `InputError` for a folder.
    """
    check_target(path)
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    new = target.with_name(f".{target.name}.{os.getpid()}.partial")
    new.unlink(missing_ok=True)  # of a process that was killed
    try:
        with _refused(path):
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


@contextmanager
def restored_on_error(path: Path) -> Iterator[None]:
    """Put a file back as it was if the block fails; a full disk can cut a file that a library writes in place.

    The copy, `.NAME.before`, is made first, so that restoring needs no space.
    """
    copy = path.with_name(f".{path.name}.before")
    copy.unlink(missing_ok=True)  # of a process that was killed
    if path.exists():
        shutil.copy2(path, copy)
    try:
        yield
    except BaseException:
        if not copy.exists():
            path.unlink(missing_ok=True)
        elif not path.exists() or not filecmp.cmp(copy, path, shallow=False):
            copy.replace(path)
            logger.warning("%s: restored as it was before the error", path)
        raise
    finally:
        copy.unlink(missing_ok=True)
