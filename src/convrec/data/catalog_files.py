"""Catalog files: CSV, JSON lines, Parquet, or a pickled list of (title, year)."""

import csv
import io
import json
import pickle
from pathlib import Path

import pyarrow.parquet as pq

from convrec.data.catalog import Catalog, build_catalog
from convrec.data.quarantine import Quarantine
from convrec.data.titles import title_and_year
from convrec.errors import InputError


class _PlainUnpickler(pickle.Unpickler):
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
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise InputError(f"{path}: not a readable pickle ({error}); save the catalog again") from None
    if not isinstance(value, list) or not all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
        raise InputError(f"{path}: the pickle holds no plain list of (title, year); save the catalog again")
    return [{"title": title, "year": year} for title, year in value]


def _read_csv(path: Path) -> list[dict[str, object]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream)
        found = set(reader.fieldnames or [])
        if not found & {"name", "title"}:
            raise InputError(
                f"{path}: row 1: column 'title' is missing (found {str(reader.fieldnames)[:300]}); the header must "
                "name it, and year where items have one"
            )
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
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({str(error)[:200]})") from None
    for number, row in enumerate(rows, start=1):
        try:  # the canonical table holds the metadata of an item as one JSON object
            row.update(json.loads(row.pop("metadata", "") or "{}"))
        except (TypeError, ValueError):
            raise InputError(f"{path}: row {number}: field 'metadata' is not a JSON object") from None
    return rows


def read_json_lines(path: Path) -> list[dict]:
    """Return the objects of a JSON-lines file.

    Raises `InputError` naming the row for text that is no JSON object.
    """
    rows = []
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise InputError(f"{path}: row {number}: not JSON ({error.msg} at column {error.colno})") from None
            except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets without end
                raise InputError(f"{path}: row {number}: not readable JSON ({error})") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}: row {number}: a JSON object is needed, not {type(row).__name__}")
            rows.append(row)
    return rows


def read_rows(path: Path) -> list[dict]:
    """Return the raw rows of a catalog file: CSV, JSON lines, Parquet, or a pickled list of (title, year).

    A row without `title` that has a `name`, "Title" or "Title (Year)", gets title and year from it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such catalog file; set data.path to where it is")
    readers = {".csv": _read_csv, ".jsonl": read_json_lines, ".pkl": _read_pickle, ".parquet": _read_parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: catalogs are read from {', '.join(readers)}, not {path.suffix or 'this'}")
    try:
        rows = reader(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; convert the file to UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}: not readable as CSV ({error}); quote fields, and close every quote") from None
    for row in rows:
        if not row.get("title") and row.get("name"):
            row["title"], year = title_and_year(str(row["name"]))
            row["year"] = year or row.get("year")
    return rows


RESERVED = ("title", "year", "name", "aliases", "id")  # columns that are no metadata, and those that end in _id


def load_catalog(path: Path, quarantine: Quarantine, source: str = "catalog") -> Catalog:
    """Return the catalog of a file in any of the forms of `read_rows`.

    Columns beside title, year, name, aliases and identifiers (`id`, `..._id`) are metadata.
    """
    rows = read_rows(path)
    names = dict.fromkeys(key for row in rows for key in row)
    fields = [name for name in names if name not in RESERVED and not name.endswith("_id")]
    return build_catalog(rows, fields, quarantine, source)[0]
