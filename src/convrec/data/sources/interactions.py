"""A log of interactions as conversations: a history in words, and what the user liked next (docs/data.md)."""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl

from convrec.data.catalog import Catalog, build_catalog
from convrec.data.catalog_files import metadata_columns, read_raw_rows
from convrec.data.conversations import prompt_key
from convrec.data.json_lines import json_lines
from convrec.data.quarantine import Quarantine
from convrec.data.sources.histories import SHIPPED, Moment, Sizes, Templates, moments, most_common_genres, user_rng
from convrec.data.sources.interaction_log import Feedback, read_log
from convrec.data.sources.source import Source
from convrec.data.titles import usable_id
from convrec.project.errors import InputError

Row = dict[str, object]
ID = "item_id"  # where the readers of this module put it
_IDS = ("movieId", "movie_id", "itemId", ID, "id", "parent_asin", "asin", "product_id")
_FLAGS = 5  # the field of u.item where those of the genres begin, in the order of u.genre
_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
_NO_GENRE = ("unknown", "(no genres listed)")
_AMAZON = ("parent_asin", "asin", "title", "store", "brand", "main_category", "categories")  # what is read of a product
_TITLE = re.compile(r"(?P<title>[^(]+?)(?P<others>(?: \([^()]*\))*?)(?P<year> \(\d{4}\))?")
_OTHER = re.compile(r"\((?:a\.?k\.?a\.? )?([^()]*)\)")
_ARTICLE_LAST = re.compile(r"^(.+), (The|An?|Les?|La|Il|El|Das|Der|Die)$")
_LOGS = ("u.data", "ratings.dat", "ratings.csv", "ratings.parquet", "interactions.csv", "interactions.parquet")
_ITEMS = ("u.item", "movies.dat", "movies.csv", "items.csv", "items.parquet", "items.jsonl")


def find_files(folder: Path, log: str | None, items: str | None) -> tuple[Path, Path]:
    """Return the files of the log and of the items: those that are given, else those of known names in the folder.

    Of the Amazon reviews these are `NAME.jsonl` and `meta_NAME.jsonl`. Raises `InputError` where there is none.
    """
    there = sorted(path.name for path in folder.glob("*"))
    products = [name for name in there if name.startswith("meta_") and name.removeprefix("meta_") in there]
    logs = [log] if log else [*_LOGS, *(name.removeprefix("meta_") for name in products)]
    found_log = next((name for name in logs if (folder / name).is_file()), None)
    catalogs = [items] if items else [*_ITEMS, f"meta_{found_log}"]
    found_items = next((name for name in catalogs if (folder / name).is_file()), None)
    if found_log and found_items:
        return folder / found_log, folder / found_items
    what, field = ("items", "data.catalog") if found_log else ("log", "data.interactions.log")
    wanted = (items if found_log else log) or "of a known name"
    raise InputError(
        f"data.path = {str(folder)!r}: no file of the {what} {wanted} there (found {', '.join(there)[:200]}); give its "
        f"name in {field}"
    )


def _movielens(path: Path) -> list[Row]:
    """Return the films of `u.item` or `movies.dat`."""
    separator, number = ("|", _FLAGS + len(_GENRES)) if path.name == "u.item" else ("::", 3)
    films = [line.split(separator) for line in path.read_text(encoding="latin-1").splitlines()]
    for place, fields in enumerate(films, start=1):
        if len(fields) != number:
            raise InputError(f"{path}: row {place}: {len(fields)} fields, not {number}; take MovieLens' own file")
    if separator == "|":
        for film in films:
            film[2] = "|".join(genre for genre, flag in zip(_GENRES, film[_FLAGS:], strict=True) if flag == "1")
    return [{ID: film[0], "title": film[1], "genres": film[2]} for film in films]


def _natural(row: Row) -> Row:
    """Return a film of MovieLens with its title as people write it, and without what stands for no genre.

    `Postman, The (Postino, Il) (1994)` is The Postman (1994), also called Il Postino.
    """
    title, genres = row.get("title"), row.get("genres")
    if isinstance(title, str) and (match := _TITLE.fullmatch(" ".join(title.split()))):
        names = [_ARTICLE_LAST.sub(r"\2 \1", name) for name in (match["title"], *_OTHER.findall(match["others"]))]
        row = row | {"title": names[0] + (match["year"] or ""), "aliases": names[1:]}
    genres = genres.split("|") if isinstance(genres, str) else genres
    if isinstance(genres, list):
        row = row | {"genres": [genre for genre in genres if genre not in _NO_GENRE]}
    row.pop("release_date", None)  # the title has the year
    return row


def read_items(path: Path, quarantine: Quarantine, line_column: str | None = None) -> tuple[Catalog, dict[str, int]]:
    """Return the catalog of an items file, and the index of each id: ids of one title and year share an item.

    The file is `u.item` or `movies.dat` of MovieLens, `meta_*.jsonl` of the Amazon reviews, or any catalog file
    (docs/data.md) with a column of ids. Raises `InputError` where it cannot be read, or has no ids.
    """
    if path.name in ("u.item", "movies.dat"):
        rows = _movielens(path)
    elif path.name.startswith("meta_") and path.suffix == ".jsonl":
        rows = [{name: row[name] for name in _AMAZON if row.get(name)} for _, row in json_lines(path)]
    else:
        rows = read_raw_rows(path)
    names = {name for row in rows for name in row}
    column = next((name for name in _IDS if name in names), None)
    if column is None:
        raise InputError(f"{path}: no column of ids (found {', '.join(sorted(names))[:300]}); name one of them {ID}")
    if column in ("movieId", "movie_id") or path.name in ("u.item", "movies.dat"):
        rows = [_natural(row) for row in rows]
    fields = [name for name in metadata_columns(path, rows, line_column) if name not in _IDS]
    ids = [row.get(column) for row in rows]
    bare = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    catalog, places = build_catalog(bare, fields, quarantine, "catalog", line_column)
    indices: dict[str, int] = {}
    for number, (own_id, place) in enumerate(zip(ids, places, strict=True), start=1):
        try:
            key = usable_id(own_id, column)
        except ValueError as problem:
            quarantine.add("catalog", number, str(problem), own_id)
            continue
        if key and place is not None:
            indices.setdefault(key, place)
    return catalog, indices


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
