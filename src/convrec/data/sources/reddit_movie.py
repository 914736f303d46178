"""The raw Reddit-Movie dump: CSVs with the turns of threads, films as IMDb ids in the texts, and the films' names.

A thread is a seeker's post and the replies below it; the context of a turn is the path from the post to its parent.
A text is a cell of plain text or, as in the published files, the Python literal of a list of role and text.
Source: He et al. 2023, "Large Language Models as Zero-Shot Conversational Recommenders".
"""

import ast
import datetime
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import polars as pl

from convrec.data.catalog import Catalog, build_catalog
from convrec.data.conversations import prompt_key
from convrec.data.quarantine import Quarantine
from convrec.data.rows import LONGEST_CONVERSATION
from convrec.data.sources.source import Source
from convrec.data.titles import title_and_year
from convrec.project.errors import InputError
from convrec.project.text import is_clean

NAMES = "id2name.json"
_MENTION = re.compile(r"tt[0-9]+")
_USED = ("conv_id", "turn_id", "is_seeker", "utc_time", "upvotes", "processed", "context_turn_ids")
_USER = "user_id"  # a column that files may lack
_MORE = "beyond the header"  # takes the field that a row has beyond those of the header
_LITERAL = re.compile(r"""\s*\[\s*['"]""")
# Reddit began in 2005: an earlier time is no time, a later one than 2100 is milliseconds.
_FIRST, _END = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC).timestamp() for year in (2005, 2100))


class _Film(NamedTuple):
    """A film with a name: ids of one item share the `key`; `name` is `Title (Year)`."""

    key: int | str
    name: str
    title: str
    year: int | None
    is_known: bool  # whether the catalog has the item


class _Turn(NamedTuple):
    """A turn; of copies that differ, the least one counts. An unusable time is 0, unusable upvotes are -inf."""

    text: str
    is_seeker: bool
    time: int
    upvotes: float
    path: tuple[str, ...]
    conversation: str
    user: str

    def films(self) -> list[str]:
        return list(dict.fromkeys(_MENTION.findall(self.text)))


def _films(folder: Path, quarantine: Quarantine) -> tuple[Catalog, dict[str, _Film]]:
    """Return the catalog, and the films that have a name by IMDb id."""
    path = folder / NAMES
    try:
        names = json.loads(path.read_text(encoding="utf-8-sig"))
        by_id = sorted(names.items(), key=lambda pair: (len(pair[0]), pair[0]))
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise InputError(
            f"{path}: no readable JSON object of IMDb ids and names `Title (Year)` ({error}); download the file again"
        ) from None
    catalog, places = build_catalog([{"title": name} for _, name in by_id], (), quarantine)
    films: dict[str, _Film] = {}
    for (movie, name), place in zip(by_id, places, strict=True):
        if place is not None:
            item = catalog.items[place]
            films[movie] = _Film(place, str(item), item.title, item.year, True)
        elif isinstance(name, str) and name.strip() and is_clean(name):
            text = " ".join(name.split())
            films[movie] = _Film(movie, text, title_and_year(text)[0] or text, None, False)
    return catalog, films


def _cells(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the used cells of a file as texts, with the number of the row (the header is row 1)."""
    try:
        names = pl.scan_csv(path, infer_schema=False, glob=False).collect_schema().names()
        missing = [name for name in _USED if name not in names]
        if missing or any("_duplicated_" in name for name in names):
            raise InputError(
                f"{path}: row 1: column {missing[0]!r} is missing (found {', '.join(names)[:300]})"
                if missing
                else f"{path}: row 1: a column stands twice in the header; remove one of the two"
            )
        schema = dict.fromkeys([*names, _MORE], pl.String)
        rows = pl.scan_csv(path, schema=schema, missing_columns="insert", empty_string_is_null=False, glob=False)
        user = pl.col(_USER) if _USER in names else pl.lit("").alias(_USER)
        cells = rows.select(*_USED, user, _MORE).collect().fill_null("")
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = " ".join(str(error).split("The current offset")[0].split())[:200]  # then come hints on Polars' options
        raise InputError(
            f"{path}: not readable as CSV in UTF-8 ({reason}); close every quote, or download the file again"
        ) from None
    yield from ((number, row) for number, row in enumerate(cells.iter_rows(), start=2) if any(row))


def _strings(cell: str, field: str) -> list[str]:
    """Return the texts of a literal of a list. Raises `ValueError` for anything else."""
    try:
        values = ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) and is_clean(value) for value in values):
        raise ValueError(f"broken literal in {field}")
    return values


def _number(cell: str) -> float:
    """Return the cell as a finite number (pandas writes 12.0 where a column has gaps), else -inf."""
    try:
        number = float(cell)
    except ValueError:
        return -math.inf
    return number if math.isfinite(number) else -math.inf


def _turn(cells: tuple[str, ...]) -> _Turn:
    """Return the turn of a row. Raises `ValueError` saying why there is none."""
    conversation, turn_id, is_seeker, time, upvotes, processed, context, user, more = cells
    if more:
        raise ValueError("more fields than the header names")
    if not all(map(is_clean, cells)):
        raise ValueError("a NUL")
    if len(processed) > LONGEST_CONVERSATION:
        raise ValueError(f"a text of more than {LONGEST_CONVERSATION:,} characters")
    if not turn_id:
        raise ValueError("no turn_id")
    if is_seeker.lower() not in ("true", "false"):
        raise ValueError("is_seeker is neither True nor False")
    if not processed and not context:
        raise ValueError("neither text nor context")
    text = processed
    if _LITERAL.match(processed):
        role_and_text = _strings(processed, "processed")
        if len(role_and_text) != 2:
            raise ValueError("broken literal in processed")
        text = role_and_text[1]
    path = tuple(_strings(context, "context_turn_ids")) if context else ()
    seconds = _number(time)
    return _Turn(
        text=text.strip(),
        is_seeker=is_seeker.lower() == "true",
        time=int(seconds) if _FIRST <= seconds < _END else 0,
        upvotes=_number(upvotes),
        path=path,
        conversation=conversation,
        user=user.strip(),
    )


def _turns(folder: Path, quarantine: Quarantine) -> dict[str, _Turn]:
    """Return every turn of the folder's CSVs once, by its id."""
    paths = sorted(path for path in folder.glob("*.csv") if path.is_file())
    if not paths:
        raise InputError(f"data.path = {str(folder)!r}: no *.csv there; name the folder of the raw Reddit-Movie CSVs")
    turns: dict[str, _Turn] = {}
    for path in paths:
        for number, cells in _cells(path):
            quarantine.count("turns")
            where, turn_id = f"{path.name}:{number}", cells[1]
            try:
                turn = _turn(cells)
            except ValueError as problem:
                quarantine.add("turns", where, str(problem), cells[5])
                continue
            other = turns.get(turn_id, turn)
            if turn[:5] != other[:5]:
                quarantine.add("turns", where, "differs from another row of its turn_id", turn_id)
            turns[turn_id] = min(turn, other)
    return turns


def _key(movie: str, films: dict[str, _Film]) -> int | str:
    return films[movie].key if movie in films else movie


class _Context(NamedTuple):
    """What stands above a turn: its messages, their prompt's id, the films that they name, and who asks."""

    messages: list[dict[str, str]]
    prompt_id: str
    films: set[int | str]  # keys
    seen_titles: list[str]
    user: str


def _context(path: tuple[str, ...], turns: dict[str, _Turn], films: dict[str, _Film]) -> _Context:
    """Return the context of a path, the ids of its films replaced by names, turns of one role joined.

    Raises `ValueError` saying why it cannot be used.
    """
    if not path:
        raise ValueError("no context")
    if not turns.keys() >= {*path}:
        raise ValueError("a turn of its context is missing")
    above = [turns[turn_id] for turn_id in path]
    if not any(turn.is_seeker and turn.text for turn in above):
        raise ValueError("no words of the seeker in its context")
    messages: list[dict[str, str]] = []
    for turn in above:
        role = "user" if turn.is_seeker else "assistant"
        text = _MENTION.sub(lambda m: films[m.group()].name if m.group() in films else m.group(), turn.text)
        if text and messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{text}"
        elif text:
            messages.append({"role": role, "content": text})
    named = [movie for turn in above for movie in turn.films()]
    return _Context(
        messages=messages,
        prompt_id=prompt_key(messages),
        films={_key(movie, films) for movie in named},
        seen_titles=list(dict.fromkeys(films[movie].title for movie in named if movie in films)),
        user=next(turn.user for turn in above if turn.is_seeker),
    )


def _truths(
    turn_id: str, mentioned: list[str], context: _Context, films: dict[str, _Film], quarantine: Quarantine
) -> list[dict[str, Any]]:
    """Return the films of a turn that its context does not name, each item once."""
    fresh: dict[int | str, str] = {}
    for movie in mentioned:
        if (key := _key(movie, films)) not in context.films:
            fresh.setdefault(key, movie)
    quarantine.count("groundtruth", len(fresh))
    truths = []
    for movie in fresh.values():
        film = films.get(movie)
        if film is not None and film.is_known:
            truths.append({"title": film.title, "year": film.year})
        else:
            reason = f"no name in {NAMES}" if film is None else "not in the catalog"
            quarantine.add("groundtruth", turn_id, reason, movie if film is None else f"{movie} {film.title}")
    return truths


def read_reddit_movie(folder: Path, quarantine: Quarantine, *, min_upvotes: int) -> Source:
    """Return the catalog and the canonical rows in the order of time.

    Each turn of a recommender with at least `min_upvotes` that names films which its context has not named gives a
    row: the turns of its context as messages, those films as ground truth, the films of the context as seen, its
    day in UTC as date, and the seeker who speaks first as user. Rows that share a prompt share its `prompt_id`. The
    rows are the same whatever the order of files and rows. What cannot be used is added to `quarantine`.
    Raises `InputError` on missing or unreadable files, and if there is no row.
    """
    catalog, films = _films(folder, quarantine)
    turns = _turns(folder, quarantine)
    context_of = cache(lambda path: _context(path, turns, films))
    rows: list[dict[str, Any]] = []
    used: set[str] = set()  # turns of contexts
    for turn_id, turn in sorted(turns.items(), key=lambda pair: (pair[1].time, pair[0])):
        mentioned = turn.films()
        if turn.is_seeker or not mentioned or -math.inf < turn.upvotes < min_upvotes:
            continue
        quarantine.count("conversations")
        try:
            _check(turn_id, turn)
            context = context_of(turn.path)
        except ValueError as problem:
            quarantine.add("conversations", turn_id, str(problem), turn.path)
            continue
        truths = _truths(turn_id, mentioned, context, films, quarantine)
        if truths:
            used.update(turn.path)
            rows.append(
                {
                    "conversation_id": turn.conversation,
                    "prompt_id": context.prompt_id,
                    "user_id": context.user,
                    "date": datetime.datetime.fromtimestamp(turn.time, datetime.UTC).strftime("%Y-%m-%d"),
                    "messages": context.messages,
                    "groundtruth": truths,
                    "seen_titles": context.seen_titles,
                    "disliked_titles": [],
                }
            )
    for turn_id in sorted(used):
        for movie in turns[turn_id].films():
            quarantine.count("seen_titles")
            if movie not in films:
                quarantine.add("seen_titles", turn_id, f"no name in {NAMES}", movie)
    if not rows:
        raise InputError(
            f"data.path = {str(folder)!r}: no recommender's turn of at least {min_upvotes} upvotes names a new film "
            f"of the catalog ({quarantine.summary() or 'no row was left out'}); check the files and data.min_upvotes"
        )
    return Source(catalog, pd.DataFrame(rows))


def _check(turn_id: str, turn: _Turn) -> None:
    """Raise `ValueError` saying why a recommender's turn cannot be used."""
    if turn.upvotes == -math.inf:
        raise ValueError("upvotes is no number")
    if not turn.time:
        raise ValueError("utc_time is no time from 2005 to 2099")
    if not turn.conversation:
        raise ValueError("no conv_id")
    if len({*turn.path, turn_id}) <= len(turn.path):
        raise ValueError("a turn twice in its path")
