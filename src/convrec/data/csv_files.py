"""Reads CSV and other text of fields: in UTF-8, and lines that are not valid UTF-8 in Windows-1252.

Windows-1252 has the letters of Latin-1 at the same places. Lines end at `\\n` alone.
"""

import codecs
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from convrec.project.errors import InputError
from convrec.project.paths import regular

_BLOCK = 1 << 20  # characters
_UTF_16 = "encoded in UTF-16 or UTF-32; save it as UTF-8, in Excel as `CSV UTF-8`"
_KINDS = {  # by their first bytes
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it",
    b"PK\x03\x04": "a ZIP archive or an Excel workbook; unpack it, or save it as `CSV UTF-8`",
    b"PAR1": "a Parquet file; name it .parquet",
    **dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), _UTF_16),
}
_SPACE_AND_QUOTE = re.compile(', +"')
_FIELD = re.compile(r'(^|,) *("(?:[^"]|"")*"|)', re.MULTILINE)  # its beginning; the whole of a field in quotes
_AGAIN = "_duplicated_"  # what Polars adds, with a number, to a name that stands again


def decode(line: bytes) -> str:
    """Return the text of a line."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="replace")


def require_text(path: Path, start: bytes) -> None:
    """Raise `InputError` if a file that begins with these bytes is compressed, an archive, Parquet, or in UTF-16."""
    otherwise = _UTF_16 if b"\0" in start[:2] else None
    if kind := next((kind for magic, kind in _KINDS.items() if start.startswith(magic)), otherwise):
        raise InputError(f"{path}: {kind}")


def require_distinct(path: Path, names: Iterable[str]) -> None:
    """Raise `InputError` if two columns of a file have one name."""
    for name, number in Counter(names).items():
        if number > 1:
            raise InputError(f"{path}: {number} columns are named {name!r}; rename or remove all but one of them")


def scan_csv(path: Path, **options: Any) -> pl.LazyFrame:
    """Return the cells of a CSV as text; `options` are those of Polars. Spaces around the columns' names do not count.

    A file that is not UTF-8, or has spaces before its columns' names and before quotes, is in memory. Raises
    `InputError` for a file that is no such text (see `require_text`), and for a name that two columns have.
    """
    source: Path | bytes = path
    try:
        with regular(path).open("rb") as file:
            start = file.read(_BLOCK)
            require_text(path, start)
        with path.open(encoding="utf-8") as text:
            while text.read(_BLOCK):
                pass
    except UnicodeDecodeError:
        source = "\n".join(map(decode, path.read_bytes().split(b"\n"))).encode()
    rows = pl.scan_csv(source, infer_schema=False, glob=False, **options)
    if not options.get("has_header", True):
        return rows
    names = rows.collect_schema().names()
    if any(name.startswith(" ") for name in names[1:]):
        content = (source if isinstance(source, bytes) else source.read_bytes()).decode()
        if _SPACE_AND_QUOTE.search(content):
            rows = pl.scan_csv(_FIELD.sub(r"\1\2", content).encode(), infer_schema=False, glob=False, **options)
            names = rows.collect_schema().names()
    own = [(name if _AGAIN.encode() in start else name.partition(_AGAIN)[0]).strip() for name in names]
    require_distinct(path, filter(None, own))  # columns without a name, as of commas at the end, are no matter
    return rows.rename({name: short for name, short in zip(names, own, strict=True) if short})
