"""What users were shown, and what they accepted of it: by month, by rank, and by item without the rank's effect.

Users look at the first ranks more often, so the acceptance of an item depends on where it was shown. With the
examination model P(accepted) = P(examined | rank) · P(relevant | item), weighting each acceptance by the inverse of the
rank's examination probability estimates the item's relevance without that effect: Joachims, Swaminathan & Schnabel,
"Unbiased Learning-to-Rank with Biased Feedback" (WSDM 2017), section 4.
"""

from typing import Any

import polars as pl

COLUMNS = {"item_id": pl.String, "rank": pl.Int64, "accepted": pl.Boolean, "is_explored": pl.Boolean}
LEAST_PROPENSITY = 0.05  # clips the weights of ranks that hardly anybody looks at, which would have a large variance
LEAST_ACCEPTED = 20  # accepted items of explored answers from which propensities are estimated
MOST_ITEMS = 20  # of the table by item


def by_month(shown: pl.DataFrame) -> pl.DataFrame:
    """Return `shown` and `accepted`, counts of shown items, by `month`, `item_id` and `rank`.

    `shown` has one row for each shown item: its `time` and `COLUMNS`.
    """
    counted = shown.with_columns(month=pl.col("time").dt.strftime("%Y-%m"))
    keys = ["month", "item_id", "rank"]
    return counted.group_by(keys).agg(shown=pl.len().cast(pl.Int64), accepted=_accepted()).sort(keys)


def propensities(shown: pl.DataFrame) -> dict[int, float]:
    """Return the probability that a user examines each rank, relative to the first; empty without exploration.

    An explored answer shows its items in random order, so that every rank has the same mean relevance, and acceptance
    by rank is proportional to the examination of the rank (Joachims et al. 2017, section 5.1). A rank is assumed to be
    examined at most as often as the one before, and at least with `LEAST_PROPENSITY`.
    """
    ranks = _by_rank(shown.filter("is_explored"))
    if ranks["accepted"].sum() < LEAST_ACCEPTED or ranks["rank"][0] != 1 or ranks["accepted"][0] == 0:
        return {}
    relative = (ranks["accepted"] / ranks["shown"]) / (ranks["accepted"][0] / ranks["shown"][0])
    falling = relative.cum_min().clip(lower_bound=LEAST_PROPENSITY)
    return dict(zip(ranks["rank"].to_list(), falling.to_list(), strict=True))


def describe_exposure(shown: pl.DataFrame) -> dict[str, Any]:
    """Return acceptance by rank, and by item for the items shown most often.

    `by_rank` has for each rank: `shown`, `accepted`, `rate`, and `propensity` (see `propensities`; None if unknown).
    `by_item` has `shown`, `accepted`, `rate`, and `weighted_rate`, the mean of accepted / propensity of the rank: an
    estimate of the rate at rank 1 (None without propensities).
    """
    weights = propensities(shown)
    ranks = [
        {**row, "rate": row["accepted"] / row["shown"], "propensity": weights.get(row["rank"])}
        for row in _by_rank(shown).to_dicts()
    ]
    inverse = {rank: 1 / weight for rank, weight in weights.items()}
    weighted = pl.col("accepted") * pl.col("rank").replace_strict(inverse, default=None, return_dtype=pl.Float64)
    items = shown.group_by("item_id").agg(
        shown=pl.len(), accepted=_accepted(), rate=pl.col("accepted").mean(), weighted_rate=weighted.mean()
    )
    items = items.sort(["shown", "item_id"], descending=[True, False]).head(MOST_ITEMS)
    if not weights:
        items = items.with_columns(weighted_rate=None)
    return {
        "shown": len(shown),
        "accepted": int(shown["accepted"].sum()),
        "explored": int(shown["is_explored"].sum()),
        "by_rank": ranks,
        "by_item": items.to_dicts(),
    }


def _accepted() -> pl.Expr:
    return pl.col("accepted").sum().cast(pl.Int64)


def _by_rank(shown: pl.DataFrame) -> pl.DataFrame:
    return shown.group_by("rank").agg(shown=pl.len(), accepted=_accepted()).sort("rank")
