"""Catalog files: CSV, JSON lines, Parquet, or a pickled list of (title, year)."""

import csv
import io
import json
import pickle
from pathlib import Path

from convrec.data.catalog import Catalog, build_catalog
from convrec.data.json_objects import json_object, repeated_key
from convrec.data.parquet import MAX_ITEMS, parquet_rows
from convrec.data.quarantine import Quarantine
from convrec.data.titles import title_and_year
from convrec.project.errors import InputError
from convrec.project.text import is_clean


class _PlainUnpickler(pickle._Unpickler):  # the C unpickler allocates as much memory as a damaged byte requests
    """Unpickles plain lists, tuples, strings and numbers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> object:
        raise InputError(
            f"the pickle asks for {module}.{name}; only plain lists of (title, year) are read, because other "
            "pickles can run code: save the catalog as CSV or JSON lines instead"
        )


def _read_pickle(path: Path) -> list[dict[str, object]]:
    try:
        value = _PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise almost any exception
        raise InputError(f"{path}: not a readable pickle ({error}); save the catalog again") from None
    if not isinstance(value, list) or not all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
        raise InputError(f"{path}: the pickle holds no plain list of (title, year); save the catalog again")
    for number, pair in enumerate(value, start=1):
        if not all(part is None or isinstance(part, (str, int, float)) for part in pair):
            raise InputError(f"{path}: row {number}: a title is text and a year a number; save the catalog again")
    return [{"title": title, "year": year} for title, year in value]


def _read_csv(path: Path) -> list[dict[str, object]]:
    text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)  # an open quote is an error
    names = reader.fieldnames or []
    if not {"name", "title"} & set(names):
        raise InputError(
            f"{path}: row 1: column 'title' is missing (found {str(reader.fieldnames)[:300]}); the header must "
            "name it, and year where items have one"
        )
    if len(set(names)) < len(names):
        raise InputError(f"{path}: row 1: a column stands twice in the header; remove one of the two")
    rows: list[dict[str, object]] = []
    for number, row in enumerate(reader, start=2):
        if None in row or None in row.values():
            raise InputError(
                f"{path}: row {number}: {'more' if None in row else 'fewer'} fields than the header names; "
                "quote fields that hold commas"
            )
        rows.append(dict(row))
    return rows


def _read_parquet(path: Path) -> list[dict[str, object]]:
    return [_with_metadata(path, number, row) for number, row in enumerate(parquet_rows(path, MAX_ITEMS), start=1)]


def _with_metadata(path: Path, number: int, row: dict[str, object]) -> dict[str, object]:
    """Return a row with its `metadata` as fields: the canonical table holds them as one JSON object, and its id."""
    if "metadata" in row and "item_id" in row:
        row["id"] = row.pop("item_id")
    text = row.pop("metadata", None) or "{}"
    try:
        metadata = json.loads(text) if isinstance(text, str) else None
        repeated = repeated_key(str(text).encode(), metadata)
    except (ValueError, RecursionError):
        metadata = repeated = None
    if repeated is not None:
        raise InputError(f"{path}: row {number}: metadata's field {repeated!r:.60} stands twice; remove one of the two")
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: row {number}: field 'metadata' is not a JSON object; mend it, or leave it out")
    return {**metadata, **row}


def read_json_lines(path: Path) -> list[dict]:
    """Return the objects of a JSON-lines file.

    Raises `InputError` naming the row for text that is no JSON object.
    """
    rows = []
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()  # at \n, \r\n and \r, as a text file's
    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(json_object(line, f"{path}: row {number}"))
    return rows


def read_raw_rows(path: Path) -> list[dict]:
    """Return the raw rows of a catalog file: CSV, JSON lines, Parquet, or a pickled list of (title, year).

    A row without `title` that has a `name`, "Title" or "Title (Year)", gets title and year from it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such catalog file; {_elsewhere(path)}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: catalogs are read from {', '.join(_READERS)}, not {path.suffix or 'this'}")
    try:
        rows = reader(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: not readable ({error.strerror}); check the file") from None
    except csv.Error as error:
        raise InputError(f"{path}: not readable as CSV ({error}); quote fields, and close every quote") from None
    for row in rows:
        name = row.get("name")
        if not row.get("title") and name:
            if isinstance(name, str):
                row["title"], year = title_and_year(name)
                row["year"] = year or row.get("year")
            else:
                row["title"] = name
    return rows


_READERS = {".csv": _read_csv, ".jsonl": read_json_lines, ".pkl": _read_pickle, ".parquet": _read_parquet}


def _elsewhere(path: Path) -> str:
    """Return the remedy for a missing catalog file: its folder may contain one with another suffix."""
    others = sorted(other for other in path.parent.glob("*") if other.stem == path.stem and other.is_file())
    readable = [other.name for other in others if other.suffix.lower() in _READERS]
    if readable:
        return f"its folder has {', '.join(readable)}: set data.catalog to that name, or save it as {path.name}"
    if others:
        return f"its folder has {others[0].name}, which is not read: save it as {path.name}"
    return "set data.path to where it is"


RESERVED = ("title", "year", "name", "aliases", "id")  # columns that are not metadata, besides those that end in _id


def load_catalog(
    path: Path, quarantine: Quarantine, source: str = "catalog", line_column: str | None = None
) -> Catalog:
    """Return the catalog of a file in any of the forms of `read_raw_rows`.

    Columns beside title, year, name, aliases, `id` and other identifiers (`..._id`) are metadata. `line_column` is one
    of these, which becomes part of the title (see `catalog.title_of`).
    """
    rows = read_raw_rows(path)
    return build_catalog(rows, metadata_columns(path, rows, line_column), quarantine, source, line_column)[0]


def metadata_columns(path: Path, rows: list[dict], line_column: str | None) -> list[str]:
    """Return the columns that hold metadata; `line_column` must be one of them. Raises `InputError` naming a column."""
    names = dict.fromkeys(key for row in rows for key in row)
    fields = [name for name in names if name not in RESERVED and not name.endswith("_id")]
    for name in fields:
        if not is_clean(name):
            raise InputError(f"{path}: column {name!r}: NUL or half a character; rename it")
    if line_column is not None and line_column not in fields:
        raise InputError(
            f"{path}: no column {line_column!r} to tell items of one title apart (found {', '.join(fields)[:300]}); "
            "name one of these as line column, or none"
        )
    return fields


def open_catalog(path: Path, line_column: str | None = None) -> tuple[Catalog, str]:
    """Return a catalog, and a message with its size and the number of unusable rows."""
    if not path.is_file():
        raise InputError(f"--catalog {path}: no such file; name a catalog, or run `dvc repro data` first")
    quarantine = Quarantine()
    catalog = load_catalog(path, quarantine, line_column=line_column)
    left_out = f"; left out: {quarantine.summary()}" if quarantine.rows else ""
    return catalog, f"{path}: {len(catalog)} items{left_out}"
