"""Logs of interactions, `user, item, rating or event, time`, read with Polars in bounded memory.

A log is CSV (with a header), Parquet, JSON lines, or one of MovieLens' own files; docs/data.md has the layouts. Of a
long log only the rows of the users that are drawn are ever in memory.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from convrec.data.parquet import parquet_columns
from convrec.data.quarantine import Quarantine
from convrec.project.errors import InputError

KNOWN_COLUMNS = {  # the names of MovieLens, of the Amazon reviews of 2023 and 2018, and what others often use
    "user": ("user_id", "userId", "user", "reviewerID", "customer_id"),
    "item": ("movie_id", "movieId", "item_id", "itemId", "item", "parent_asin", "asin", "product_id"),
    "value": ("rating", "overall", "event", "event_type"),
    "time": ("timestamp", "unixReviewTime", "time", "date"),
}
_WITHOUT_HEADER = {"u.data": "\t", "ratings.dat": ":"}  # `::` divides the fields of the latter
_FIELDS = ("user", "item", "value", "time")  # of those
_MORE = "beyond the header"  # takes the field that a row has beyond those of the header
MAX_UNUSABLE = 100_000  # rows of a log that are kept aside one by one
_FIRST_TIME, _END_TIME = 631_152_000, 4_102_444_800  # 1990 to 2099, in seconds since 1970


@dataclass(frozen=True)
class Feedback:
    """The rule for liked and disliked items: a minimum and a maximum rating, or names of events.

    `disliked` is None where nothing does. A log that has neither ratings nor events is one of liked items.
    """

    liked: float | list[str]
    disliked: float | list[str] | None

    def sign(self, value: pl.Expr) -> pl.Expr:
        """Return whether a value, as text, is of a liked item (true), of a disliked one (false), or neither (null)."""
        number, low = _number(value), self.disliked
        likes = number >= self.liked if isinstance(self.liked, float) else value.is_in(self.liked)
        dislikes = number <= low if isinstance(low, float) else value.is_in(low or [])
        return pl.when(likes).then(True).when(dislikes).then(False)


def _number(cell: pl.Expr) -> pl.Expr:
    value = cell.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _scan(path: Path, columns: Mapping[str, str | None]) -> tuple[pl.LazyFrame, dict[str, str]]:
    """Return the rows of a log, and the names of its columns by what they are."""
    suffix = path.suffix.lower()
    if separator := _WITHOUT_HEADER.get(path.name):
        rows = pl.scan_csv(path, separator=separator, has_header=False, infer_schema=False, quote_char=None)
        names = rows.collect_schema().names()[:: 2 if separator == ":" else 1]
        if len(names) != len(_FIELDS):
            raise InputError(f"{path}: {len(names)} fields, not {', '.join(_FIELDS)}; take MovieLens' own file")
        return rows.rename(dict(zip(names, _FIELDS, strict=True))), dict(zip(_FIELDS, _FIELDS, strict=True))
    if suffix == ".parquet":
        parquet_columns(path)
        rows = pl.scan_parquet(path, glob=False)
    elif suffix == ".jsonl":
        names = list(pl.scan_ndjson(path, infer_schema_length=100).collect_schema())
        rows = pl.scan_ndjson(path, schema=dict.fromkeys(_chosen(path, names, columns).values(), pl.String))
    elif suffix == ".csv":
        names = list(pl.scan_csv(path, infer_schema=False, glob=False).collect_schema())
        schema = dict.fromkeys([*names, _MORE], pl.String)
        rows = pl.scan_csv(path, schema=schema, missing_columns="insert", empty_string_is_null=False, glob=False)
    else:
        raise InputError(f"{path}: logs are read from .csv, .parquet and .jsonl, not {suffix or 'this'}; convert it")
    return rows, _chosen(path, list(rows.collect_schema()), columns)


def _chosen(path: Path, names: list[str], columns: Mapping[str, str | None]) -> dict[str, str]:
    """Return the name of the column of each field: the one that is given, else the first known one that is there."""
    chosen = {}
    for field, known in KNOWN_COLUMNS.items():
        given = columns.get(field)
        name = given or next((name for name in known if name in names), None)
        if name is None and field == "value":
            continue
        if name is None or name not in names:
            raise InputError(
                f"{path}: no column {given or field!r} (found {', '.join(names)[:300]}); give the name of the "
                f"{field}'s column as data.interactions.columns.{field}"
            )
        chosen[field] = name
    return chosen


def _text(name: str, kind: pl.DataType) -> pl.Expr:
    """Return a column as text without spaces around it, "" where it is null; whole numbers are without a point."""
    column = pl.col(name)
    if kind.is_float():
        column = pl.when(column == column.round()).then(column.cast(pl.Int64, strict=False))
    return column.cast(pl.String).str.strip_chars().fill_null("")


def _seconds(name: str, kind: pl.DataType) -> pl.Expr:
    """Return a time in seconds since 1970: it is given so, in milli-, micro- or nanoseconds, or as ISO 8601."""
    column = pl.col(name)
    if kind.is_temporal():
        return column.cast(pl.Datetime("us")).dt.epoch("s")
    number = _number(column.cast(pl.String).str.strip_chars() if kind == pl.String else column)
    text: pl.Expr = pl.when(number.is_null()).then(column.cast(pl.String))  # of numbers nothing is left to parse
    text = text.str.strip_chars().str.replace(" ", "T").str.replace("Z$", "+00:00")
    scale = pl.when(number >= 1e17).then(1e9).when(number >= 1e14).then(1e6).when(number >= 1e11).then(1e3).otherwise(1)
    return pl.coalesce(
        (number / scale).floor().cast(pl.Int64, strict=False),
        text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", strict=False, time_zone="UTC").dt.epoch("s"),
        text.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", strict=False).dt.epoch("s"),
        text.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")).dt.epoch("s"),
    )


def _usable(path: Path, columns: Mapping[str, str | None], feedback: Feedback) -> pl.LazyFrame:
    """Return the rows as row (counted from 1), user, item, liked (null: neither), time, and problem (null: usable)."""
    rows, names = _scan(path, columns)
    kinds = rows.collect_schema()
    sign, is_number = pl.lit(True), pl.lit(True)
    if "value" in names:
        value = _text(names["value"], pl.String()) if kinds[names["value"]] == pl.String else pl.col(names["value"])
        sign = feedback.sign(value.cast(pl.String))
        is_number = _number(value).is_not_null() if isinstance(feedback.liked, float) else is_number
    more = (pl.col(_MORE) != "") if _MORE in kinds else pl.lit(False)
    user, item = (_text(names[field], kinds[names[field]]) for field in ("user", "item"))
    seconds = _seconds(names["time"], kinds[names["time"]])
    problem = (
        pl.when(more.fill_null(False))
        .then(pl.lit("more fields than the header names"))
        .when(user == "")
        .then(pl.lit("no user"))
        .when(item == "")
        .then(pl.lit("no item"))
        .when(~is_number)
        .then(pl.lit("the rating is no number"))
        .when(~seconds.is_between(_FIRST_TIME, _END_TIME, closed="left").fill_null(False))
        .then(pl.lit("the time is none from 1990 to 2099"))
    )
    cells = rows.select(user=user, item=item, liked=sign, time=seconds, problem=problem)
    return cells.with_row_index("row", offset=1)


def _keep_aside(log: pl.LazyFrame, path: Path, quarantine: Quarantine) -> None:
    """Keep the rows aside that cannot be used. Raises `InputError` where these are too many."""
    unusable = log.filter(pl.col("problem").is_not_null()).select("row", "problem", "user", "item")
    rows = unusable.head(MAX_UNUSABLE + 1).collect(engine="streaming").sort("row")
    if len(rows) > MAX_UNUSABLE:
        row, problem, *_ = rows.row(0)
        raise InputError(
            f"{path}: more than {MAX_UNUSABLE:,} rows cannot be used (row {row}: {problem}); mend the file"
        )
    for row, problem, user, item in rows.iter_rows():
        quarantine.add("interactions", f"{path.name}:{row}", problem, f"user {user}, item {item}")


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
    feedback: Feedback,
    num_prompts: Callable[[np.ndarray], np.ndarray],
    max_prompts: int,
    seed: int,
    quarantine: Quarantine,
) -> pl.DataFrame:
    """Return what the drawn users liked and disliked: user, item, liked, time (seconds), sorted by these.

    `columns` names the log's columns where they are none of `KNOWN_COLUMNS`. `num_prompts` gives for numbers of liked
    items the numbers of prompts; users are drawn until there are `max_prompts`. Rows that cannot be used go to the
    quarantine. Raises `InputError` on a file that cannot be read, and where nobody liked enough.
    """
    try:
        log = _usable(path, columns, feedback)
        usable = pl.col("problem").is_null()
        counts = log.group_by("user").agg(
            pl.len().alias("rows"), usable.sum().alias("usable"), (usable & pl.col("liked")).sum().alias("likes")
        )
        by_user = counts.collect(engine="streaming")
        quarantine.count("interactions", int(by_user["rows"].sum()))
        if by_user["usable"].sum() < by_user["rows"].sum():
            _keep_aside(log, path, quarantine)
        users = _drawn(by_user, num_prompts, max_prompts, seed)
        drawn = log.filter(usable & pl.col("liked").is_not_null()).join(users.lazy(), on="user", how="semi")
        rows = drawn.select("user", "item", "liked", "time").collect(engine="streaming")
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: not a readable log ({reason}); export it again") from None
    if users.is_empty():
        raise InputError(
            f"{path}: no user of {len(by_user):,} has liked enough items; look at data.interactions.liked, and lower "
            "min_liked"
        )
    return rows.sort("user", "time", "item", "liked")
