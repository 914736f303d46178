"""Catalog files: CSV, JSON lines, Parquet, or a pickled list of (title, year)."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path

import polars as pl

from convrec.data.catalog import CATALOG_COLUMNS, Catalog, build_catalog
from convrec.data.csv_files import scan_csv
from convrec.data.json_lines import json_lines
from convrec.data.parquet import parquet_columns, parquet_rows
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
    return [{"title": title, "year": year} for title, year in value]


def _read_csv(path: Path) -> list[dict[str, object]]:
    try:
        rows = scan_csv(path).collect()
    except pl.exceptions.PolarsError as error:
        reason = str(error).split("\n")[0][:200]
        raise InputError(
            f"{path}: not readable as CSV ({reason}); quote fields that hold commas, and close every quote"
        ) from None
    if not {"name", "title"} & {*rows.columns}:
        raise InputError(f"{path}: column 'title' is missing (found {str(rows.columns)[:300]}); name it in row 1")
    return rows.to_dicts()


def read_raw_rows(path: Path) -> list[dict]:
    """Return the raw rows of a catalog file: CSV, JSON lines, Parquet, or a pickled list of (title, year).

    A row without `title` that has a `name`, "Title" or "Title (Year)", gets title and year from it.
    """
    if not path.is_file():
        found = ", ".join(sorted(other.name for other in path.parent.glob("*.*")))[:200]
        raise InputError(f"{path}: no such catalog file (found {found}); set data.catalog to its name")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: catalogs are read from {', '.join(_READERS)}, not {path.suffix or 'this'}")
    rows = reader(path)
    for row in rows:
        name = row.get("name")
        if not row.get("title") and name:
            if isinstance(name, str):
                row["title"], year = title_and_year(name)
                row["year"] = year or row.get("year")
            else:
                row["title"] = name
    return rows


_READERS: dict[str, Callable[[Path], list[dict]]] = {
    ".csv": _read_csv,
    ".jsonl": lambda path: [row for _, row in json_lines(path)],
    ".pkl": _read_pickle,
    ".parquet": lambda path: list(parquet_rows(path)),
}
RESERVED = ("title", "year", "name", "aliases", "id")  # columns that are not metadata, besides those that end in _id


def load_catalog(path: Path, quarantine: Quarantine, line_column: str | None = None) -> Catalog:
    """Return the catalog of a file in any of the forms of `read_raw_rows`, or of the canonical table (docs/data.md).

    Columns beside title, year, name, aliases, `id` and other identifiers (`..._id`) are metadata. `line_column` is one
    of these, or `id`, which becomes part of the title (see `catalog.title_of`).
    """
    if path.suffix.lower() == ".parquet" and path.is_file() and {*CATALOG_COLUMNS} == {*parquet_columns(path)}:
        catalog = Catalog.read(path)
        quarantine.count("catalog", len(catalog))
        return catalog
    rows = read_raw_rows(path)
    fields = metadata_columns(path, rows, line_column)
    return build_catalog(rows, fields, quarantine, line_column=line_column)[0]


def metadata_columns(path: Path, rows: list[dict], line_column: str | None) -> list[str]:
    """Return the columns that hold metadata. Raises `InputError` if `line_column` is none of them, nor the `id`."""
    names = dict.fromkeys(key for row in rows for key in row)
    fields = [name for name in names if name not in RESERVED and not name.endswith("_id")]
    for name in fields:
        if not is_clean(name):
            raise InputError(f"{path}: column {name!r}: NUL or half a character; rename it")
    choices = [*fields, *({"id"} & {*names})]
    if line_column is not None and line_column not in choices:
        raise InputError(
            f"{path}: no column {line_column!r} to tell items of one title apart (found {', '.join(choices)[:300]}); "
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
