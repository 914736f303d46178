"""Your own conversations: JSON lines or Parquet files in the project's schema, and a catalog (docs/data.md)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.data.catalog_files import load_catalog
from convrec.data.json_objects import repeated_key
from convrec.data.parquet import parquet_columns, parquet_rows
from convrec.data.quarantine import Quarantine
from convrec.data.rows import usable_rows
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

PATTERN = "conversations*"
_REQUIRED = ("messages", "groundtruth")
_LONGEST_LINE = 10_000_000  # bytes of one row of JSON


def read_files(folder: Path, quarantine: Quarantine, *, catalog: str, line_column: str | None = None) -> Source:
    """Return the catalog and the canonical rows of every `conversations*.jsonl` and `conversations*.parquet`.

    `catalog` is the name of its file. `line_column` of the catalog, and of items in the rows, becomes part of an
    item's title. A row that cannot be used goes to the quarantine. Raises `InputError` on missing or unreadable files,
    and if no row can be used.
    """
    if not folder.is_dir():
        raise InputError(f"data.path = {str(folder)!r}: no such folder; name the folder of your conversations")
    paths = sorted(path for path in folder.glob(PATTERN) if path.suffix.lower() in _READERS)
    if not paths:
        raise InputError(
            f"data.path = {str(folder)!r}: no {PATTERN}.jsonl or .parquet there; docs/data.md shows what they hold"
        )
    items = load_catalog(folder / catalog, quarantine, line_column=line_column)
    raw_rows = (numbered for path in paths for numbered in _READERS[path.suffix.lower()](path, quarantine))
    rows = usable_rows(raw_rows, items, quarantine, line_column)
    if not rows:
        raise InputError(
            f"data.path = {str(folder)!r}: none of its rows can be used ({quarantine.summary() or 'there is none'}); "
            "docs/data.md shows what a row holds"
        )
    return Source(items, pd.DataFrame(rows))


def _read_json_lines(path: Path, quarantine: Quarantine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a file with their lines' numbers; a line that is none goes to the quarantine."""
    for number, line in _lines(path):
        where = f"{path.name}:{number}"
        try:
            value = _object_of(line)
        except ValueError as problem:
            quarantine.count("conversations")
            quarantine.add("conversations", where, str(problem), line[:1000].decode(errors="backslashreplace"))
        else:
            yield where, value


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1; of a line that is too long only the beginning."""
    if not path.is_file():
        raise InputError(f"{path}: no file; name the files of your conversations so, and no folder")
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(_LONGEST_LINE + 1):
            number += 1
            rest = line
            while len(rest) > _LONGEST_LINE and not rest.endswith(b"\n"):
                rest = stream.readline(_LONGEST_LINE + 1)
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
            if len(line) > _LONGEST_LINE or line.strip():
                yield number, line


def _object_of(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line. Raises `ValueError` saying why it is none."""
    if len(line) > _LONGEST_LINE:
        raise ValueError(f"a line of more than {_LONGEST_LINE // 1_000_000} MB")
    try:
        value = json.loads(line.decode("utf-8"))
        repeated = repeated_key(line, value)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if repeated is not None:
        raise ValueError("a field stands twice")
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def _read_parquet(path: Path, _: Quarantine) -> Iterator[tuple[str, dict[str, Any]]]:
    found = parquet_columns(path)
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise InputError(
            f"{path}: column {missing[0]!r} is missing (found {', '.join(found)[:300]}); "
            "docs/data.md shows what a row holds"
        )
    for number, row in enumerate(parquet_rows(path), start=1):
        yield f"{path.name}:{number}", row


_READERS: dict[str, Any] = {".jsonl": _read_json_lines, ".parquet": _read_parquet}
