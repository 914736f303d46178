"""What users were shown, and what they accepted of it: by month, by rank, and by item."""

from typing import Any

import polars as pl

MOST_ITEMS = 20  # of the table by item


def by_month(shown: pl.DataFrame) -> pl.DataFrame:
    """Return `shown` and `accepted`, counts of shown items, by `month`, `item_id` and `rank`.

    `shown` has one row for each shown item: its `time`, `item_id`, `rank` and whether it was `accepted`.
    """
    counted = shown.with_columns(month=pl.col("time").dt.strftime("%Y-%m"))
    keys = ["month", "item_id", "rank"]
    return counted.group_by(keys).agg(shown=pl.len().cast(pl.Int64), accepted=_accepted()).sort(keys)


def describe_exposure(shown: pl.DataFrame) -> dict[str, Any]:
    """Return `shown`, `accepted` and the acceptance `rate` by rank, and of the items shown most often."""
    counts = {"shown": pl.len(), "accepted": _accepted(), "rate": pl.col("accepted").mean()}
    items = shown.group_by("item_id").agg(**counts).sort(["shown", "item_id"], descending=[True, False])
    return {
        "shown": len(shown),
        "accepted": int(shown["accepted"].sum()),
        "by_rank": shown.group_by("rank").agg(**counts).sort("rank").to_dicts(),
        "by_item": items.head(MOST_ITEMS).to_dicts(),
    }


def _accepted() -> pl.Expr:
    return pl.col("accepted").sum().cast(pl.Int64)
