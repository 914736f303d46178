"""Your own conversations: JSON lines or Parquet files in the project's schema, and a catalog (docs/data.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convrec.data.catalog_files import load_catalog
from convrec.data.json_lines import json_object, numbered_lines
from convrec.data.parquet import parquet_rows
from convrec.data.quarantine import Quarantine
from convrec.data.row_files import Row
from convrec.data.rows import usable_rows
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

PATTERN = "conversations*"


def read_files(folder: Path, quarantine: Quarantine, *, catalog: str, line_column: str | None = None) -> Source:
    """Return the catalog and the canonical rows of every `conversations*.jsonl` and `conversations*.parquet`.

    `catalog` is the name of its file. `line_column` of the catalog, and of items in the rows, becomes part of an
    item's title. A row that cannot be used goes to the quarantine. Raises `InputError` on missing or unreadable files,
    if no row can be used, and if two files have one `conversation_id` for conversations that begin differently.
    """
    paths = sorted(path for path in folder.glob(PATTERN) if path.suffix.lower() in (".jsonl", ".parquet"))
    if not paths:
        raise InputError(
            f"data.path = {str(folder)!r}: no {PATTERN}.jsonl or .parquet there; docs/data.md shows what they hold"
        )
    items = load_catalog(folder / catalog, quarantine, line_column=line_column)
    known: dict[int, tuple[int, int]] = {}  # by the hash of an id: the file, and the hash of how it begins there

    def read() -> Iterator[Row]:
        for number, path in enumerate(paths):
            raw_rows = ((where, {**row, "prompt_id": None}) for where, row in _raw_rows(path, quarantine))
            for row in usable_rows(raw_rows, items, quarantine, line_column):
                key, begin = row["conversation_id"], hash(row["messages"][0]["content"])
                if len(paths) > 1:
                    file, known_begin = known.setdefault(hash(key), (number, begin))
                    if file != number and known_begin != begin:
                        raise InputError(
                            f"{path}: conversation_id {key!r} is that of another conversation in {paths[file].name}, "
                            "and rows of one id are in one split; make ids unique over all files, such as "
                            f"{path.stem + '-' + key!r}, or omit them"
                        )
                yield row

    rows = spooled(read())
    if not len(rows):
        raise InputError(
            f"data.path = {str(folder)!r}: none of its rows can be used ({quarantine.summary() or 'there is none'}); "
            "docs/data.md shows what a row holds"
        )
    return Source(items, rows)


def _raw_rows(path: Path, quarantine: Quarantine) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a file with their places; a line that is no JSON object goes to the quarantine."""
    if path.suffix.lower() == ".parquet":
        yield from ((f"{path.name}:{number}", row) for number, row in enumerate(parquet_rows(path), start=1))
        return
    for number, line in numbered_lines(path):
        where = f"{path.name}:{number}"
        try:
            value = json_object(line)
        except ValueError as problem:
            quarantine.count("conversations")
            quarantine.add("conversations", where, str(problem), line[:1000].decode(errors="backslashreplace"))
        else:
            yield where, value
