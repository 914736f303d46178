"""Files that list the items of a log: their catalog, and the item of each id (docs/data.md)."""

import logging
import re
from collections import Counter
from pathlib import Path

from convrec.data.catalog import Catalog, build_catalog, title_of
from convrec.data.catalog_files import metadata_columns, read_raw_rows
from convrec.data.csv_files import decode
from convrec.data.json_lines import json_lines, numbered_lines
from convrec.data.quarantine import Quarantine
from convrec.data.titles import ITEM_IDS, fold, normalise_text, title_and_year, usable_id
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

Row = dict[str, object]
ID = "item_id"  # where readers put it
_FLAGS = 5  # the field of u.item where those of the genres begin, in the order of u.genre
_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
_NO_GENRE = ("unknown", "(no genres listed)")
_AMAZON = ("parent_asin", "asin", "title", "store", "brand", "main_category", "categories")  # what is read of a product
_TITLE = re.compile(r"(?P<title>[^(]+?)(?P<others>(?: ?\([^()]*\))*)")
_OTHER = re.compile(r"\((?:a\.?k\.?a\.? )?([^()]*)\)")


def _movielens(path: Path) -> list[Row]:
    """Return the films of `u.item` or `movies.dat`."""
    separator, number = ("|", _FLAGS + len(_GENRES)) if path.name == "u.item" else ("::", 3)
    films = []
    for place, line in numbered_lines(path):
        films.append(decode(line).rstrip("\r\n").split(separator))
        if len(films[-1]) != number:
            raise InputError(f"{path}: row {place}: {len(films[-1])} fields, not {number}; take MovieLens' own file")
    if separator == "|":
        for film in films:
            film[2] = "|".join(genre for genre, flag in zip(_GENRES, film[_FLAGS:], strict=True) if flag == "1")
    return [{ID: film[0], "title": film[1], "genres": film[2]} for film in films]


def _natural(row: Row) -> Row:
    """Return a film of MovieLens with its title as people write it, and without what stands for no genre.

    `Postman, The (Postino, Il) (1994)` is The Postman (1994), also called Il Postino.
    """
    title, genres = row.get("title"), row.get("genres")
    bare, year = title_and_year(normalise_text(title)) if isinstance(title, str) else ("", "")
    if match := _TITLE.fullmatch(bare):
        row = row | {"title": match["title"] + f" ({year})" * bool(year), "aliases": _OTHER.findall(match["others"])}
    genres = genres.split("|") if isinstance(genres, str) else genres
    if isinstance(genres, list):
        row = row | {"genres": [genre for genre in genres if genre not in _NO_GENRE]}
    row.pop("release_date", None)  # the title has the year
    return row


def _line(row: Row, column: str) -> tuple[str, int | None, str] | None:
    """Return the folded title, the year and the id of a row; None where one of them cannot be used."""
    try:
        (title, year), own_id = title_of(row), usable_id(row.get(column), column)
    except ValueError:
        return None
    return (fold(title), year, own_id) if own_id else None


def read_items(path: Path, quarantine: Quarantine, line_column: str | None = None) -> tuple[Catalog, dict[str, int]]:
    """Return the catalog of an items file, and the index of each id (see `index_items`).

    The file is `u.item` or `movies.dat` of MovieLens, `meta_*.jsonl` of the Amazon reviews, or any catalog file
    (docs/data.md) with a column of ids. Raises `InputError` where it cannot be read, or has no ids.
    """
    if path.name in ("u.item", "movies.dat"):
        rows = _movielens(path)
    elif path.name.startswith("meta_") and path.suffix == ".jsonl":
        rows = [{name: row[name] for name in _AMAZON if row.get(name)} for _, row in json_lines(path)]
    else:
        rows = read_raw_rows(path)
    return index_items(path, rows, quarantine, line_column)


def index_items(
    path: Path, rows: list[Row], quarantine: Quarantine, line_column: str | None = None
) -> tuple[Catalog, dict[str, int]]:
    """Return the catalog of the rows of a file, and the index of each id.

    MovieLens lists some films twice: there, ids of one title and year share an item. Elsewhere each id is an item, and
    the other titles of its rows are aliases; where titles and years are equal and no `line_column` tells them apart,
    the id does, as in `Lamp - P7`. Raises `InputError` where there is no column of ids.
    """
    names = {name for row in rows for name in row}
    column = next((name for name in ITEM_IDS if name in names), None)
    if column is None:
        raise InputError(f"{path}: no column of ids (found {', '.join(sorted(names))[:300]}); name one of them {ID}")
    is_movielens = column in ("movieId", "movie_id") or path.name in ("u.item", "movies.dat")
    if is_movielens:
        rows = [_natural(row) for row in rows]
    fields = [name for name in metadata_columns(path, rows, line_column) if name not in ITEM_IDS]
    bare = [{name: value for name, value in row.items() if name not in ("id", ID)} for row in rows]
    lines = [_line(row, column) for row in rows]
    keys = [line[2] if line else "" for line in lines]
    if line_column in (None, "id") and not is_movielens:
        line_column = ID
        first = {line[2]: line[:2] for line in reversed(lines) if line}
        counts = Counter(first.values())
        for row, key in zip(bare, keys, strict=True):
            if key and counts[first[key]] > 1:
                row[ID] = key
        if number := sum(ID in row for row in bare):
            remedy = "" if path.suffix == ".txt" else ", unless you set data.line_column"
            note = "%s: %d items share title and year with another; their lines have their ids%s"
            logger.warning(note, path, number, remedy)
    catalog, places = build_catalog(bare, fields, quarantine, "catalog", line_column, keys)
    indices: dict[str, int] = {}
    for number, (row, place) in enumerate(zip(rows, places, strict=True), start=1):
        try:
            key = usable_id(row.get(column), column)
        except ValueError as problem:
            quarantine.add("catalog", number, str(problem), row)
            continue
        if key and place is not None:
            indices.setdefault(key, place)
    return catalog, indices
