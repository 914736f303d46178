"""The items of a log: MovieLens' files, Amazon's metadata, or any catalog file with a column of ids."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from convrec.data.catalog import Catalog, build_catalog
from convrec.data.catalog_files import metadata_columns, read_raw_rows
from convrec.data.quarantine import Quarantine
from convrec.data.titles import usable_id
from convrec.project.errors import InputError

Row = dict[str, object]
ID = "item_id"  # where the readers of this module put it
_IDS = ("movieId", "movie_id", "itemId", ID, "id", "parent_asin", "asin", "product_id")
_FLAGS = 5  # the field of u.item where those of the genres begin, in the order of u.genre
_GENRES = (
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_NO_GENRE = ("unknown", "(no genres listed)")
_AMAZON = ("parent_asin", "asin", "title", "store", "brand", "main_category", "categories")  # what is read of a product
_TITLE = re.compile(r"(?P<title>[^(]+?)(?P<others>(?: \([^()]*\))*?)(?P<year> \(\d{4}\))?")
_OTHER = re.compile(r"\((?:a\.?k\.?a\.? )?([^()]*)\)")
_ARTICLE_LAST = re.compile(r"^(.+), (The|An?|Les?|La|Il|El|Das|Der|Die)$")


def _movielens_fields(path: Path, separator: str, number: int) -> Iterator[list[str]]:
    for place, line in enumerate(path.read_bytes().decode("latin-1").splitlines(), start=1):
        fields = line.split(separator)
        if len(fields) != number:
            raise InputError(f"{path}: row {place}: {len(fields)} fields, not {number}; take MovieLens' own file")
        yield fields


def _u_item(path: Path) -> list[Row]:
    rows: list[Row] = []
    for fields in _movielens_fields(path, "|", _FLAGS + len(_GENRES)):
        genres = [genre for genre, flag in zip(_GENRES, fields[_FLAGS:], strict=True) if flag == "1"]
        rows.append({ID: fields[0], "title": fields[1], "genres": genres})
    return rows


def _movies_dat(path: Path) -> list[Row]:
    fields = _movielens_fields(path, "::", 3)
    return [{ID: number, "title": title, "genres": genres} for number, title, genres in fields]


def _amazon(path: Path) -> list[Row]:
    rows = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line)
                rows.append({name: row[name] for name in _AMAZON if row.get(name)})
            except (ValueError, AttributeError, RecursionError):
                raise InputError(f"{path}: row {number}: no JSON object; download the file again") from None
    return rows


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
    if not path.is_file():
        raise InputError(
            f"{path}: no such items file; name the file of data.path that has ids and titles in data.catalog"
        )
    if path.name in ("u.item", "movies.dat"):
        rows = _u_item(path) if path.name == "u.item" else _movies_dat(path)
    elif path.name.startswith("meta_") and path.suffix == ".jsonl":
        rows = _amazon(path)
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
