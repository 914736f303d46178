"""Times as people write them: one reader for dates of conversations and for logs."""

import datetime
import math
import re
from functools import reduce

import polars as pl

FIRST_YEAR, LAST_YEAR = 1990, 2099
NO_TIME = f"no time from {FIRST_YEAR} to {LAST_YEAR}, in ISO 8601 or in seconds since 1970"
_FIRST, _END = 631_152_000, 4_102_444_800  # of these years, in seconds since 1970
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e8, 1.0))  # from which number on, how many of them are a second
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE]\+?\d{1,3})?", re.ASCII)
_ZONE = re.compile(r"\s*(?:Z|UTC|GMT|([+-]\d\d(?::?\d\d)?))$", re.IGNORECASE | re.ASCII)


def read_time(value: object) -> int | None:
    """Return a time in whole seconds since 1970, None where it is `NO_TIME`.

    It is given as a date, a time, a text in ISO 8601, or a number: seconds, milli-, micro- or nanoseconds since 1970. A
    number that is too small for these is a date, as in 20240305. A time without a zone is in UTC.
    """
    try:
        text = str(value).strip().removesuffix(".0")  # of a column of whole numbers with gaps
        number = float(text) if _NUMBER.fullmatch(text) else 0.0
        if number >= _UNITS[-1][0]:
            seconds = next(number / size for least, size in _UNITS if number >= least)
        else:  # a date or time of Python's, too, is written so
            moment = datetime.datetime.fromisoformat(_ZONE.sub(lambda zone: zone[1] or "+00:00", text))
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
        return math.floor(seconds) if _FIRST <= seconds < _END else None
    except (ValueError, OverflowError):
        return None


def time_column(name: str, kind: pl.DataType) -> pl.Expr:
    """Return `read_time` of a column of this type; numbers, which long logs have, without Python."""
    column = pl.col(name)
    if kind.is_temporal():
        seconds = column.cast(pl.Datetime("us")).dt.epoch("s")
    else:
        text = column.cast(pl.String).str.strip_chars()
        number = text.cast(pl.Float64, strict=False)
        scaled = reduce(
            lambda other, unit: pl.when(number >= unit[0]).then(number / unit[1]).otherwise(other),
            reversed(_UNITS),
            pl.lit(None, pl.Float64),
        )
        others = pl.when(scaled.is_null()).then(text).map_elements(read_time, pl.Int64)
        seconds = pl.coalesce(scaled.floor().cast(pl.Int64, strict=False), others)
    return pl.when(seconds.is_between(_FIRST, _END, closed="left")).then(seconds)
