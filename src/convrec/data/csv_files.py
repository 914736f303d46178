"""Reads CSV and other text of fields: in UTF-8, and lines that are not valid UTF-8 in Windows-1252.

Windows-1252 has the letters of Latin-1 at the same places. Lines end at `\\n` alone.
"""

import codecs
from pathlib import Path
from typing import Any

import polars as pl

from convrec.project.errors import InputError

_BLOCK = 1 << 20  # characters


def decode(line: bytes) -> str:
    """Return the text of a line."""
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="replace")


def scan_csv(path: Path, **options: Any) -> pl.LazyFrame:
    """Return the cells of a CSV as text; `options` are those of Polars. Only a file that is not UTF-8 is in memory.

    Raises `InputError` for UTF-16 and UTF-32.
    """
    source: Path | bytes = path
    try:
        with path.open("rb") as file:
            start = file.read(2)
            if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start:
                raise InputError(f"{path}: encoded in UTF-16 or UTF-32; save it as UTF-8, in Excel as `CSV UTF-8`")
        with path.open(encoding="utf-8") as text:
            while text.read(_BLOCK):
                pass
    except UnicodeDecodeError:
        source = "\n".join(map(decode, path.read_bytes().split(b"\n"))).encode()
    return pl.scan_csv(source, infer_schema=False, glob=False, **options)
