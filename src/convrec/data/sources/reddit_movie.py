"""The raw Reddit-Movie dump: CSVs with the turns of threads, films as IMDb ids in the texts, and the films' names.

A thread is a seeker's post and the replies below it; the context of a turn is the path from the post to its parent.
A text is a cell of plain text or, as in the published files, the Python literal of a list of role and text.
Source: He et al. 2023, "Large Language Models as Zero-Shot Conversational Recommenders".
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import polars.selectors as cs

from convrec.data.catalog import Catalog, Item, build_catalog
from convrec.data.csv_files import scan_csv
from convrec.data.quarantine import Quarantine
from convrec.data.rows import PLACEHOLDER, is_placeholder, usable_rows
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from convrec.data.times import time_column
from convrec.project.errors import InputError
from convrec.project.paths import regular

NAMES = "id2name.json"
MIN_UPVOTES = 1  # answers with fewer are not ground truth
_MENTION = re.compile(r"tt[0-9]+")
_USED = ("turn_id", "conv_id", "is_seeker", "utc_time", "upvotes", "processed", "context_turn_ids")
_LITERAL = re.compile(r"""\s*\[\s*['"]""")


class _Turn(NamedTuple):
    """A turn; `films` are the items that it names, once each, and the ids without a name."""

    conversation: str
    role: str
    time: str
    upvotes: float | None
    text: str
    films: dict[Item | str, None]
    path: list[str]
    user: str


def _films(folder: Path, quarantine: Quarantine) -> tuple[Catalog, dict[str, Item]]:
    """Return the catalog, and its items by IMDb id."""
    path = folder / NAMES
    try:
        names = json.loads(regular(path).read_text(encoding="utf-8-sig"))
        by_id = sorted(names.items(), key=lambda pair: (len(pair[0]), pair[0]))
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise InputError(
            f"{path}: no readable JSON object of IMDb ids and names `Title (Year)` ({error}); download the file again"
        ) from None
    catalog, places = build_catalog([{"title": name} for _, name in by_id], (), quarantine)
    placed = zip(by_id, places, strict=True)
    return catalog, {movie: catalog.items[place] for (movie, _), place in placed if place is not None}


def _table(folder: Path) -> pl.DataFrame:
    """Return every turn of the folder's CSVs once, in order of time; of copies that differ, the least one counts."""
    paths = sorted(path for path in folder.glob("*.csv") if path.is_file())
    if not paths:
        raise InputError(f"data.path = {str(folder)!r}: no *.csv there; name the folder of the raw Reddit-Movie CSVs")
    tables = []
    for path in paths:
        try:
            tables.append(scan_csv(path).select(*_USED, cs.by_name("user_id", require_all=False)).collect())
        except (pl.exceptions.PolarsError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{path}: not readable as CSV with the columns {', '.join(_USED)} ({reason}); close every "
                "quote, or download the file again"
            ) from None
    rows = pl.concat(tables, how="diagonal").fill_null("")
    rows = rows.sort(rows.columns).unique("turn_id", keep="first", maintain_order=True)
    return rows.sort(time_column("utc_time", pl.String()), maintain_order=True)


def _strings(cell: str) -> list[str]:
    """Return the texts of a literal of a list. Raises `ValueError` for anything else."""
    try:
        values = ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("broken literal")
    return values


def _turns(folder: Path, films: Mapping[str, Item], quarantine: Quarantine) -> dict[str, _Turn]:
    """Return the turns by id, in order of time; what cannot be read goes to the quarantine."""
    turns = {}
    table = _table(folder).with_columns(pl.col("upvotes").cast(pl.Float64, strict=False))
    quarantine.count("turns", len(table))
    for row in table.iter_rows(named=True):
        text, context = row["processed"], row["context_turn_ids"]
        try:
            text = _strings(text)[-1] if _LITERAL.match(text) else text
            path = _strings(context) if context else []
            if is_placeholder(text):
                raise ValueError(PLACEHOLDER)
        except ValueError as problem:
            quarantine.add("turns", row["turn_id"], str(problem), f"{text} {context}")
            continue
        turns[row["turn_id"]] = _Turn(
            conversation=row["conv_id"],
            role="user" if row["is_seeker"].lower() == "true" else "assistant",
            time=row["utc_time"],
            upvotes=row["upvotes"],
            text=text.strip(),
            films=dict.fromkeys(films.get(movie, movie) for movie in _MENTION.findall(text)),
            path=path,
            user=row.get("user_id", ""),
        )
    return turns


def _messages(turns: list[_Turn], films: Mapping[str, Item]) -> list[dict[str, str]]:
    """Return the messages of turns, the ids of films replaced by names, turns of one role joined."""
    messages: list[dict[str, str]] = []
    for turn in turns:
        text = _MENTION.sub(lambda match: str(films.get(match.group(), match.group())), turn.text)
        if text and messages and messages[-1]["role"] == turn.role:
            messages[-1]["content"] += f"\n{text}"
        elif text:
            messages.append({"role": turn.role, "content": text})
    return messages


def _raw_rows(
    turns: dict[str, _Turn], films: Mapping[str, Item], quarantine: Quarantine
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of the recommenders' turns that name items which their context does not name."""
    for turn_id, turn in turns.items():
        if turn.role == "user" or turn.upvotes is None or turn.upvotes < MIN_UPVOTES:
            continue
        above = [turns[above_id] for above_id in turn.path if above_id in turns]
        seen = {film: None for one in above for film in one.films}
        new = [film for film in turn.films if film not in seen]
        if not any(isinstance(film, Item) for film in new):
            continue
        if len(above) < len(turn.path):
            quarantine.count("conversations")
            quarantine.add("conversations", turn_id, "a turn of its context is missing", turn.path)
            continue
        yield (
            turn_id,
            {
                "conversation_id": turn.conversation,
                "user_id": next((one.user for one in above if one.role == "user"), ""),
                "date": turn.time,
                "messages": _messages(above, films),
                "groundtruth": [_item(film) for film in new],
                "seen_titles": [_item(film) for film in seen],
            },
        )


def _item(film: Item | str) -> dict[str, Any]:
    """Return an item as `usable_rows` takes it; an id without a name is no item of the catalog."""
    return {"id": film} if isinstance(film, str) else {"title": film.title, "year": film.year}


def read_reddit_movie(folder: Path, quarantine: Quarantine) -> Source:
    """Return the catalog and the canonical rows in the order of time.

    Each turn of a recommender with at least `MIN_UPVOTES` that names films which its context has not named gives a
    row: the turns of its context as messages, those films as ground truth, the films of the context as seen, its
    day in UTC as date, and the seeker who speaks first as user. Rows that share a prompt share its `prompt_id`. The
    rows are the same whatever the order of files and rows. What cannot be used is added to `quarantine`.
    Raises `InputError` on missing or unreadable files, and if there is no row.
    """
    catalog, films = _films(folder, quarantine)
    turns = _turns(folder, films, quarantine)
    rows = spooled(usable_rows(_raw_rows(turns, films, quarantine), catalog, quarantine))
    if not len(rows):
        raise InputError(
            f"data.path = {str(folder)!r}: no recommender's turn of at least {MIN_UPVOTES} upvotes names a new film "
            f"of the catalog ({quarantine.summary() or 'no row was left out'}); check the files"
        )
    return Source(catalog, rows)
