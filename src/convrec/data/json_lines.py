"""Reads JSON lines: one object a line, in UTF-8."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convrec.data.csv_files import require_text
from convrec.project.errors import InputError
from convrec.project.paths import regular


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers from 1."""
    try:
        with regular(path).open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if number == 1:
                    require_text(path, line)
                if line.removeprefix(b"\xef\xbb\xbf").strip():  # a byte order mark
                    yield number, line
    except OSError as error:
        raise InputError(f"{path}: not readable ({error.strerror}); give a text file") from None


def json_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raises `ValueError` saying why it is none."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file with the numbers of their lines. Raises `InputError` for a line that is none."""
    for number, line in numbered_lines(path):
        try:
            value = json_object(line)
        except ValueError as problem:
            raise InputError(f"{path}: line {number}: {problem}; give one JSON object per line, in UTF-8") from None
        yield number, value
