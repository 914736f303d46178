"""A log of interactions as conversations: a history in words, and what the user liked next (docs/data.md)."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from convrec.data.catalog import Catalog
from convrec.data.conversations import prompt_key
from convrec.data.quarantine import Quarantine
from convrec.data.sources.histories import SHIPPED, Moment, Sizes, Templates, moments, most_common_genres, user_rng
from convrec.data.sources.interaction_items import read_items
from convrec.data.sources.interaction_log import Feedback, read_log
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

_LOGS = ("u.data", "ratings.dat", "ratings.csv", "ratings.parquet", "interactions.csv", "interactions.parquet")
_ITEMS = ("u.item", "movies.dat", "movies.csv", "items.csv", "items.parquet", "items.jsonl")


def find_files(folder: Path, log: str | None, items: str | None) -> tuple[Path, Path]:
    """Return the files of the log and of the items: those that are given, else those of known names in the folder.

    Of the Amazon reviews these are `NAME.jsonl` and `meta_NAME.jsonl`. Raises `InputError` where there is none.
    """
    if not folder.is_dir():
        raise InputError(f"data.path = {str(folder)!r}: no such folder; name the folder of your log")
    there = sorted(path.name for path in folder.iterdir())
    products = [name for name in there if name.startswith("meta_") and name.removeprefix("meta_") in there]
    log = log or next(
        (name for name in (*_LOGS, *(name.removeprefix("meta_") for name in products)) if name in there), None
    )
    items = items or next(
        (name for name in (*_ITEMS, *(n for n in products if n == f"meta_{log}")) if name in there), None
    )
    for what, name in (("log", log), ("items", items)):
        if name is None or not (folder / name).is_file():
            field = "data.catalog" if what == "items" else "data.interactions.log"
            raise InputError(
                f"data.path = {str(folder)!r}: no file of the {what}{f' {name}' if name else ''} there (found "
                f"{', '.join(there)[:200]}); give its name in {field}"
            )
    return folder / str(log), folder / str(items)


def read_interactions(
    folder: Path,
    quarantine: Quarantine,
    *,
    log: str | None,
    catalog: str | None,
    columns: Mapping[str, str | None],
    liked: float | list[str],
    disliked: float | list[str] | None,
    max_prompts: int,
    genres: str,
    split_days: Sequence[datetime.date],
    templates: str | None,
    domain: tuple[str, str],
    seed: int,
    line_column: str | None = None,
    repeats: bool = False,
    **sizes: Any,
) -> Source:
    """Return the catalog and the canonical rows: one row for each moment at which a user is asked.

    `log` and `catalog` are the names of their files (None: known names), `liked` and `disliked` the thresholds or
    events of `Feedback`, `genres` the column of the items' genres. No ground truth crosses the beginning of one of the
    `split_days` (in UTC), so none reaches into a later split. `domain` has the words for one item and for several. With
    `repeats`, an item counts each time that it is taken, else the first time. `sizes` are the fields of `Sizes`. Raises
    `InputError` if a file cannot be read, and if there is no row.
    """
    log_path, items_path = find_files(folder, log, catalog)
    words = Templates(folder / templates if templates else SHIPPED, *domain)
    items, indices = read_items(items_path, quarantine, line_column)
    limits = Sizes(**sizes)
    feedback = Feedback(liked, disliked)
    taken = read_log(log_path, columns, feedback, limits.num_prompts, max_prompts, seed, quarantine)
    taken = _with_items(taken, indices, quarantine)
    if not repeats:
        taken = taken.unique(["user", "index"], keep="first", maintain_order=True)
    starts = [int(datetime.datetime.fromisoformat(f"{day}T00:00+00:00").timestamp()) for day in split_days]
    of_item = [item.metadata.get(genres, "").split(", ") if item.metadata.get(genres) else [] for item in items.items]
    rows = []
    for user, index, is_liked, times in _histories(taken):
        rng = user_rng(seed, user)
        order = np.lexsort((rng.random(len(times)), times))  # items with the same time have no order
        index, is_liked, times = index[order], is_liked[order], times[order]
        periods = np.searchsorted(starts, times, side="right")
        for moment in moments(index, times, is_liked, periods, limits, rng):
            rows.append(_row(user, moment, index, items, of_item, words, rng))
    if not rows:
        raise InputError(f"{log_path}: no user has liked enough items of {items_path}: are their ids the same?")
    quarantine.count("groundtruth", sum(len(row["groundtruth"]) for row in rows))
    return Source(items, pd.DataFrame(rows), group="user_id")


def _with_items(log: pl.DataFrame, indices: Mapping[str, int], quarantine: Quarantine) -> pl.DataFrame:
    """Return the rows with the index of each item; ids without an item are kept aside, once."""
    table = pl.DataFrame(
        {"item": list(indices), "index": list(indices.values())}, {"item": pl.String, "index": pl.Int64}
    )
    ids = log.select(pl.col("item").unique())
    quarantine.count("items of the log", len(ids))
    for own_id in ids.join(table, on="item", how="anti")["item"].sort():
        quarantine.add("items of the log", own_id, "not in the items file", own_id)
    return log.join(table, on="item", maintain_order="left")


def _histories(log: pl.DataFrame) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield for each user: id, indices of items, whether they were liked, times."""
    lengths = log.group_by("user", maintain_order=True).len()
    index, is_liked, times = (log[name].to_numpy() for name in ("index", "liked", "time"))
    start = 0
    for user, length in lengths.iter_rows():
        chosen = slice(start, start + length)
        yield user, index[chosen], is_liked[chosen], times[chosen]
        start += length


def _row(
    user: str,
    moment: Moment,
    index: np.ndarray,
    catalog: Catalog,
    genres: Sequence[Sequence[str]],
    templates: Templates,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return the canonical row of a moment; `index` has the items of the user's history in order of time."""
    liked, disliked = ([str(catalog.items[index[n]]) for n in part] for part in (moment.liked, moment.disliked))
    common = most_common_genres([genres[index[n]] for n in reversed(moment.past)])
    messages, names_disliked = templates.write(liked, disliked, common, rng)
    disliked = disliked if names_disliked else []
    items = [catalog.items[index[n]] for n in moment.truths]
    return {
        "conversation_id": f"{user}-{len(moment.past)}",
        "prompt_id": prompt_key(messages),
        "user_id": user,
        "date": datetime.datetime.fromtimestamp(moment.asked, datetime.UTC).strftime("%Y-%m-%d"),
        "messages": messages,
        "groundtruth": [{"title": item.title, "year": item.year} for item in items],
        "seen_titles": [*liked, *disliked],  # lines: each is that item alone, whatever else has its title
        "disliked_titles": disliked,
    }
