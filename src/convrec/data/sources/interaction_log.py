"""Logs of interactions, `user, item, rating or event, time`, read with Polars in bounded memory.

A log is CSV (with a header), Parquet, JSON lines, or one of MovieLens' own files; docs/data.md has the layouts. Of a
long log only the rows of the users that are drawn are ever in memory.
"""

import hashlib
from collections.abc import Callable, Mapping, Set
from pathlib import Path

import numpy as np
import polars as pl

from convrec.data.csv_files import scan_csv
from convrec.data.parquet import inexact_id, parquet_columns
from convrec.data.quarantine import Quarantine
from convrec.data.times import NO_TIME, time_column
from convrec.data.titles import EXACT, INVISIBLE, MISSING, NOBODY
from convrec.project.errors import InputError

KNOWN_COLUMNS = {  # the names of MovieLens, of the Amazon reviews of 2023 and 2018, and what others often use
    "user": ("user_id", "userId", "user", "reviewerID", "customer_id"),
    "item": ("movie_id", "movieId", "item_id", "itemId", "item", "parent_asin", "asin", "product_id"),
    "value": ("rating", "overall", "event", "event_type"),
    "time": ("timestamp", "unixReviewTime", "time", "date"),
}
_WITHOUT_HEADER = {"u.data": "\t", "ratings.dat": ":"}  # `::` divides the fields of the latter
MAX_UNUSABLE = 100_000  # rows of a log that are kept aside one by one
_EXACT: dict[object, int] = {pl.Float32: 2**24, pl.Float64: EXACT}  # from here on, a float is several integers
Rule = float | list[str]  # a rating, or names of events


def _number(cell: pl.Expr) -> pl.Expr:
    value = cell.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _scan(path: Path, columns: Mapping[str, str | None]) -> tuple[pl.LazyFrame, dict[str, str]]:
    """Return the rows of a log with the columns user, item, time, and value if there is one, and their own names."""
    suffix, kinds = path.suffix.lower(), pl.Schema()
    if separator := _WITHOUT_HEADER.get(path.name):
        rows = scan_csv(path, separator=separator, has_header=False, quote_char=None)
        names = rows.collect_schema().names()[:: 2 if separator == ":" else 1]
        if len(names) != len(KNOWN_COLUMNS):
            raise InputError(f"{path}: {len(names)} fields, not {', '.join(KNOWN_COLUMNS)}; take MovieLens' own file")
        chosen = dict(zip(KNOWN_COLUMNS, names, strict=True))
    elif suffix == ".parquet":
        chosen = _chosen(path, parquet_columns(path), columns)
        rows = pl.scan_parquet(path, glob=False)
        kinds = rows.collect_schema()
    elif suffix == ".jsonl":
        kinds = pl.scan_ndjson(path, infer_schema_length=100).collect_schema()
        chosen = _chosen(path, list(kinds), columns)
        rows = pl.scan_ndjson(path, schema=dict.fromkeys(chosen.values(), pl.String))
    elif suffix == ".csv":
        rows = scan_csv(path)
        chosen = _chosen(path, list(rows.collect_schema()), columns)
    else:
        raise InputError(f"{path}: logs are read from .csv, .parquet and .jsonl, not {suffix or 'this'}; convert it")
    for name, kind in ((chosen[field], kinds.get(chosen[field])) for field in ("user", "item")):
        number = pl.col(name).cast(pl.Float64, strict=False).abs().max()
        largest = rows.select(number).collect(engine="streaming").item() if kind in _EXACT else None
        if largest and largest >= _EXACT[kind]:
            raise inexact_id(path, name, kind, largest)
    return rows.select(pl.col(name).alias(field) for field, name in chosen.items()), chosen


def _chosen(path: Path, names: list[str], columns: Mapping[str, str | None]) -> dict[str, str]:
    """Return the name of the column of each field: the one that is given, else the first known one that is there."""
    chosen = {}
    for field, known in KNOWN_COLUMNS.items():
        given = columns.get(field)
        name = next((name for name in ([given] if given else known) if name in names), None)
        if name is not None:
            chosen[field] = name
        elif given or field != "value":
            raise InputError(
                f"{path}: no column {given or field!r} (found {', '.join(names)[:300]}); give the name of the "
                f"{field}'s column as data.interactions.columns.{field}"
            )
    return chosen


def _text(name: str, kind: pl.DataType, missing: Set[str] = MISSING) -> pl.Expr:
    """Return a column as `usable_id` has it, "" where it is `missing`; whole numbers are without a point."""
    column = pl.col(name)
    if kind.is_float() or kind.is_decimal():
        whole = pl.Int64 if kind.is_float() else pl.Decimal(38, 0)
        column = pl.when(column == column.round()).then(column.cast(whole, strict=False))
    text = column.cast(pl.String).str.replace_all(INVISIBLE, "").str.strip_chars()
    return pl.when(~text.str.to_lowercase().is_in(list(missing))).then(text).fill_null("")


def _usable(path: Path, columns: Mapping[str, str | None], liked: Rule, disliked: Rule | None) -> pl.LazyFrame:
    """Return the rows as row (counted from 1), user, item, liked (null: neither), time, problem (null: usable), cell.

    The cell is the one that has the problem.
    """
    rows, names = _scan(path, columns)
    kinds = rows.collect_schema()
    user, item = _text("user", kinds["user"], NOBODY), _text("item", kinds["item"])
    seconds = time_column("time", kinds["time"])
    faults = {"user": (user == "", "empty"), "item": (item == "", "empty"), "time": (seconds.is_null(), NO_TIME)}
    sign = pl.lit(True)
    if "value" in kinds:
        value = pl.col("value").cast(pl.String).str.strip_chars()
        likes = _number(value) >= liked if isinstance(liked, float) else value.is_in(liked)
        dislikes = _number(value) <= disliked if isinstance(disliked, float) else value.is_in(disliked or [])
        sign = pl.when(likes).then(True).when(dislikes).then(False)
        if isinstance(liked, float):
            faults["value"] = _number(value).is_null(), "no number"
    found = [(pl.when(is_so), field, fault) for field, (is_so, fault) in faults.items()]
    problem = pl.coalesce(case.then(pl.lit(f"column {names[field]!r} is {fault}")) for case, field, fault in found)
    cell = pl.coalesce(case.then(pl.col(field).cast(pl.String).fill_null("")) for case, field, _ in found)
    cells = rows.select(user=user, item=item, liked=sign, time=seconds, problem=problem, cell=cell)
    return cells.with_row_index("row", offset=1)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a readable log ({' '.join(str(error).split())[:200]}); export it again")


def count_values(path: Path, columns: Mapping[str, str | None]) -> dict[str, dict[str | None, int]]:
    """Return the numbers of rows by user, item and value, usable or not; `columns` and errors as of `read_log`."""
    try:
        rows, _ = _scan(path, columns)
        kinds = rows.collect_schema()
        keys = {name: _text(name, kinds[name]) for name in ("user", "item")}
        if "value" in kinds:
            keys["value"] = pl.col("value").cast(pl.String).str.strip_chars()
        counts = {name: rows.group_by(key=key).len().collect(engine="streaming") for name, key in keys.items()}
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from None
    return {name: dict(counts[name].rows()) if name in counts else {} for name in ("user", "item", "value")}


def _drawn(
    by_user: pl.DataFrame, num_prompts: Callable[[np.ndarray], np.ndarray], max_prompts: int, seed: int
) -> pl.DataFrame:
    """Return users, in an order that the seed decides, until their prompts are at least `max_prompts`."""
    numbers = num_prompts(by_user["likes"].to_numpy())
    users = by_user.select("user", pl.Series("prompts", numbers)).filter(pl.col("prompts") > 0)
    keys = [hashlib.sha256(f"{seed}:{user}".encode()).digest() for user in users["user"]]
    order = users.with_columns(pl.Series("key", keys)).sort("key")
    return order.filter(pl.col("prompts").cum_sum() - pl.col("prompts") < max_prompts).select("user")


def read_log(
    path: Path,
    columns: Mapping[str, str | None],
    liked: Rule,
    disliked: Rule | None,
    num_prompts: Callable[[np.ndarray], np.ndarray],
    max_prompts: int,
    seed: int,
    quarantine: Quarantine,
) -> pl.DataFrame:
    """Return what the drawn users liked and disliked: user, item, liked, time (seconds), sorted by these.

    `columns` names the log's columns where they are none of `KNOWN_COLUMNS`. `liked` and `disliked` are a minimum and a
    maximum rating, or names of events; of a log that has neither, everything is liked. `num_prompts` gives for numbers
    of liked items the numbers of prompts; users are drawn until there are `max_prompts`. Rows that cannot be used go to
    the quarantine. Raises `InputError` on a file that cannot be read, and where nobody liked enough.
    """
    try:
        log = _usable(path, columns, liked, disliked)
        usable = pl.col("problem").is_null()
        likes = (usable & pl.col("liked")).sum()
        by_user = log.group_by("user").agg(rows=pl.len(), likes=likes).collect(engine="streaming")
        unusable = log.filter(~usable).head(MAX_UNUSABLE + 1).collect(engine="streaming").sort("row")
        users = _drawn(by_user, num_prompts, max_prompts, seed)
        drawn = log.filter(usable & pl.col("liked").is_not_null()).join(users.lazy(), on="user", how="semi")
        rows = drawn.select("user", "item", "liked", "time").collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, error) from None
    quarantine.count("interactions", int(by_user["rows"].sum()))
    for row, user, item, _, _, problem, cell in unusable.iter_rows():
        quarantine.add("interactions", f"{path.name}:{row}", problem, f"{cell} (user {user}, item {item})")
    if len(unusable) > MAX_UNUSABLE or len(unusable) == by_user["rows"].sum() > 0:
        number = "none of its rows can" if len(unusable) <= MAX_UNUSABLE else f"more than {MAX_UNUSABLE:,} rows cannot"
        raise InputError(
            f"{path}: {number} be used ({quarantine.examples('interactions')}); mend the file, or name other columns "
            "in data.interactions.columns"
        )
    if users.is_empty():
        raise InputError(
            f"{path}: no user of {len(by_user):,} has liked enough items; look at data.interactions.liked "
            f"({quarantine.examples('interactions') or 'every row can be used'})"
        )
    return rows.sort("user", "time", "item", "liked")
