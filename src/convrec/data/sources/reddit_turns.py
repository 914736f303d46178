"""The turns of the raw Reddit-Movie dump: its CSVs read, each turn once, with what is malformed left out and counted.

A text is a cell of plain text or, as in the published files, the Python literal of a list of role and text.
"""

import datetime
from pathlib import Path

import polars as pl

from convrec.data.quarantine import Quarantine
from convrec.data.rows import LONGEST_CONVERSATION
from convrec.project.errors import InputError

_USED = ("conv_id", "turn_id", "is_seeker", "utc_time", "upvotes", "processed", "context_turn_ids")
_USER = "user_id"  # a column that files may lack
_MORE = "beyond the header"  # takes the field that a row has beyond those of the header
_ROW = "number of the row"
# Reddit began in 2005: an earlier time is no time, a later one than 2100 is milliseconds.
_FIRST, _END = (int(datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp()) for year in (2005, 2100))
# Exactly what repr() writes into strings; surrogates and NUL, which no text may hold, are not among it.
_CODES = (
    r"\\x(?:0[1-9a-f]|[1-9a-f][0-9a-f])"
    r"|\\u(?:[0-9a-ce-f][0-9a-f]{3}|d[0-7][0-9a-f]{2})"
    r"|\\U00(?:0[1-9a-f]|10)[0-9a-f]{4}"
)
_PLAIN_ESCAPES = {r"\\": "\\", r"\'": "'", r"\"": '"', r"\n": "\n", r"\t": "\t", r"\r": "\r"}
_ESCAPE = rf"""\\[\\'"ntr]|{_CODES}"""
_STRING = rf"""(?:'(?:[^'\\\n\r]|{_ESCAPE})*'|"(?:[^"\\\n\r]|{_ESCAPE})*")"""
_ROLE = r"""^\s*\[\s*(?:'[^'\\\n\r]*'|"[^"\\\n\r]*")\s*,\s*"""
_IS_LITERAL = r"""^\s*\[\s*['"]"""
_ROLE_AND_TEXT = rf"{_ROLE}{_STRING}\s*,?\s*\]\s*$"
_ID = r"""(?:'[^'\\\n\r]+'|"[^"\\\n\r]+")"""
_ID_LIST = rf"^\s*\[\s*(?:{_ID}(?:\s*,\s*{_ID})*\s*,?)?\s*\]\s*$"


def list_of_ids(cell: pl.Expr) -> pl.Expr:
    """Return the ids of a well-formed `context_turn_ids`, in order."""
    return cell.str.extract_all(_ID).list.eval(pl.element().str.slice(1).str.head(-1))


def _number(cell: pl.Expr) -> pl.Expr:
    """Return the cell as a finite number (pandas writes 12.0 where a column has gaps), else null."""
    value = cell.str.strip_chars().cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _scan(path: Path, number: int) -> pl.LazyFrame:
    """Return the used cells of a file as text, with the number of the file and of the row (the header is row 1)."""
    names = pl.scan_csv(path, infer_schema=False, glob=False).collect_schema().names()
    for name in _USED:
        if name not in names:
            raise InputError(
                f"{path}: row 1: column {name!r} is missing (found {', '.join(names)[:300]}); "
                "data.path must name the folder of the raw Reddit-Movie CSVs"
            )
    if any("_duplicated_" in name for name in names):
        raise InputError(f"{path}: row 1: a column stands twice in the header; remove one of the two")
    rows = pl.scan_csv(
        path,
        schema=dict.fromkeys([*names, _MORE], pl.String),
        missing_columns="insert",
        empty_string_is_null=False,
        row_index_name=_ROW,
        row_index_offset=2,
        glob=False,
    )
    user = pl.col(_USER) if _USER in names else pl.lit("").alias(_USER)
    cells = rows.select(pl.lit(number, pl.UInt32).alias("file"), pl.col(_ROW).alias("row"), *_USED, user, _MORE)
    return cells.filter(~pl.all_horizontal(pl.col(_USED) == ""))  # a blank line is no row


def _problem() -> pl.Expr:
    """Return why a row cannot be used at all, null where it can."""
    processed, context = pl.col("processed"), pl.col("context_turn_ids")
    broken = processed.str.contains(_IS_LITERAL) & ~processed.str.contains(_ROLE_AND_TEXT)
    return (
        pl.when(pl.col(_MORE) != "")
        .then(pl.lit("more fields than the header names"))
        .when(pl.any_horizontal(pl.col(*_USED, _USER).str.contains("\0", literal=True)))
        .then(pl.lit("NUL bytes"))
        .when(processed.str.len_chars() > LONGEST_CONVERSATION)
        .then(pl.lit(f"a text of more than {LONGEST_CONVERSATION:,} characters"))
        .when(pl.col("turn_id") == "")
        .then(pl.lit("no turn_id"))
        .when(~pl.col("is_seeker").str.to_lowercase().is_in(["true", "false"]))
        .then(pl.lit("is_seeker is neither True nor False"))
        .when(broken)
        .then(pl.lit("broken literal in processed"))
        .when((processed == "") & (context == ""))
        .then(pl.lit("neither text nor context"))
        .when((context != "") & ~context.str.contains(_ID_LIST))
        .then(pl.lit("broken literal in context_turn_ids"))
    )


def _text(processed: pl.Expr) -> pl.Expr:
    """Return the text of a cell, still with the escapes of the literal that it may be."""
    inner = processed.str.replace(_ROLE, "").str.replace(r"\s*,?\s*\]\s*$", "").str.slice(1).str.head(-1)
    return pl.when(pl.col("literal")).then(inner).otherwise(processed)


def _unescape(turns: pl.DataFrame) -> pl.DataFrame:
    r"""Return the turns with the escapes of literals resolved; of codes (\x, \u, \U), each distinct one once."""
    coded = turns.lazy().filter(pl.col("literal") & pl.col("text").str.contains(r"\\[xuU]"))
    codes = coded.select(pl.col("text").str.extract_all(_CODES).explode().unique()).collect()["text"].drop_nulls()
    escapes = _PLAIN_ESCAPES | {code: chr(int(code[2:], 16)) for code in codes}
    plain = pl.col("text").str.replace_many(list(escapes), list(escapes.values()))
    text = pl.when(pl.col("literal")).then(plain).otherwise("text").str.strip_chars()
    return turns.with_columns(text.alias("text")).drop("literal")


def _once(turns: pl.DataFrame, files: list[str], quarantine: Quarantine) -> pl.DataFrame:
    """Return each turn once, in the order of `turn_id`: of copies that differ, the first in the order of their cells.

    The conversation and the user of a turn that stands in several are the first of theirs.
    """
    twice = turns["turn_id"].is_duplicated()
    cells = ["text", "is_seeker", "utc_time", "upvotes", "context_turn_ids"]
    copies = turns.filter(twice).sort("turn_id", *cells, "conv_id", _USER, "file", "row")
    first = copies.unique("turn_id", keep="first", maintain_order=True)
    same = first.select("turn_id", *cells)
    others = copies.join(same, on=["turn_id", *cells], how="anti", nulls_equal=True).sort("file", "row")
    for file, row, turn_id in others.select("file", "row", "turn_id").iter_rows():
        quarantine.add("turns", f"{files[file]}:{row}", "differs from another row of its turn_id", turn_id)
    return pl.concat([turns.filter(~twice), first]).drop("file", "row").sort("turn_id")


def _unreadable(path: Path, error: Exception) -> InputError:
    """Return the error of a file that Polars gave up on."""
    if isinstance(error, pl.exceptions.NoDataError):
        return InputError(f"{path}: the file is empty; export or download it again")
    if "utf-8" in str(error).lower():
        return InputError(f"{path}: not UTF-8; convert the file to UTF-8 (iconv), or download it again")
    reason = " ".join(str(error).split("The current offset")[0].split())[:200]  # then come hints on Polars' options
    return InputError(f"{path}: not readable as CSV ({reason}); close every quote, or download the file again")


def read_turns(folder: Path, quarantine: Quarantine) -> pl.DataFrame:
    """Return every turn of the folder's CSVs once, sorted by `turn_id`.

    Columns: conv_id, turn_id, user_id (empty where the file has none), is_seeker, utc_time (seconds, null if unusable),
    upvotes (null if no number), text, context_turn_ids (the literal, or empty). Rows that cannot be used are added to
    `quarantine` with file and row.
    Raises `InputError` naming the file for no CSVs, missing columns, bytes that are no UTF-8 and open quotes.
    """
    paths = sorted(path for path in folder.glob("*.csv") if path.is_file())
    if not paths:
        raise InputError(f"data.path = {str(folder)!r}: no *.csv there; name the folder of the raw Reddit-Movie CSVs")
    seconds = _number(pl.col("utc_time")).floor()
    frames = []
    for number, path in enumerate(paths):
        try:
            cells = _scan(path, number).with_columns(_problem().alias("problem"))
            cells = cells.with_columns(pl.col("processed").str.contains(_IS_LITERAL).alias("literal"))
            turns = cells.select(
                "file",
                "row",
                "conv_id",
                "turn_id",
                pl.col(_USER).str.strip_chars(),
                (pl.col("is_seeker").str.to_lowercase() == "true").alias("is_seeker"),
                pl.when(seconds.is_between(_FIRST, _END, closed="left")).then(seconds).cast(pl.Int64).alias("utc_time"),
                _number(pl.col("upvotes")).alias("upvotes"),
                pl.when(pl.col("problem").is_null()).then(_text(pl.col("processed"))).alias("text"),
                "context_turn_ids",
                "literal",
                "problem",
                pl.when(pl.col("problem").is_not_null()).then(pl.col("processed").str.head(200)).alias("value"),
            )
            frames.append(turns.collect())
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _unreadable(path, error) from None
    table = pl.concat(frames)
    quarantine.count("turns", len(table))
    names = [path.name for path in paths]
    for file, row, problem, value in (
        table.filter(pl.col("problem").is_not_null()).select("file", "row", "problem", "value").iter_rows()
    ):
        quarantine.add("turns", f"{names[file]}:{row}", problem, value)
    return _once(_unescape(table.filter(pl.col("problem").is_null()).drop("problem", "value")), names, quarantine)
