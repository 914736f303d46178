"""Finds the list in a language model's free answer: in prose, a table, JSON, or a line of titles with years."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from convrec.data.catalog import Catalog
from convrec.data.parsing import (
    MAX_LINE,
    MAX_TITLE,
    NUMBER,
    YEAR,
    Entry,
    bare,
    is_prose,
    lower_words,
    parse_line,
    unmarked,
    with_credit,
)
from convrec.data.titles import WRITTEN_YEARS

_HEADING = re.compile(r"^#{1,6}\s+\S")
_SPEAKER = re.compile(r"^(?:user|system|assistant|seeker|recommender)\s*:", re.IGNORECASE)
_DETAIL = re.compile(
    r"^(?:reason|why|genres?|director|directed by|stars?|starring|cast|plot|summary|synopsis|description|notes?|year"
    r"|rating|imdb|release(?:d| year| date)?)\s*:",
    re.IGNORECASE,
)
_FILLER = re.compile(r"^(?:(?:and|or|also|then|maybe|perhaps|sure|how about|what about|try)\s+)+", re.IGNORECASE)
_INTRO = re.compile(r":\s+|\b(?:such as|like|about|try|recommend|suggest|includ(?:e|es|ing)|are|watch)\s+")
_TITLE_KEYS = ("title", "song", "track", "movie", "film", "book", "game", "show", "name", "album", "series", "item")
_CREDIT_KEYS = ("artist", "author", "creator", "director", "singer", "band", "by")
_YEAR_KEYS = ("year", "release_year", "releaseyear", "release_date", "published")


def _names_item(entry: Entry, catalog: Catalog) -> bool:
    """Tell whether the catalog knows the title of an entry in any spelling, or a part of it."""
    return bool(catalog.readings(entry.part or entry.title, entry.year))


def _without_intro(text: str, catalog: Catalog) -> str:
    """Return a part of a sentence from where its title begins."""
    text = bare(_FILLER.sub("", text))
    if catalog.readings(text, None):
        return text
    for intro in reversed(list(_INTRO.finditer(text))):
        before = text[: intro.start()] if intro.group().startswith(":") else text[: intro.end()]
        if lower_words(before)[0] or not before.strip():
            return bare(_FILLER.sub("", text[intro.end() :]))
    return text


def _by_years(line: str, catalog: Catalog) -> list[Entry]:
    """Return the entries of a line of titles with years between separators; of a remark after them nothing."""
    years = [match for match in YEAR.finditer(line) if int(match.group(1)) in WRITTEN_YEARS]
    gaps = [line[a.end() : b.start()] for a, b in zip(years, years[1:], strict=False)]
    divider = r"[\s\"'”*_]*(?:[,;|/&+]|and\s|or\s|\d{1,2}[.)]\s)"
    if not gaps or not all(re.match(divider, gap) and len(gap) < MAX_TITLE for gap in gaps):
        return []
    starts = [0, *(match.end() for match in years[:-1])]
    entries: list[Entry] = []
    for position, (start, match) in enumerate(zip(starts, years, strict=True)):
        piece = re.sub(r"^(?:[\s,;|/&+.\"'”*_\]]+|\[(?=[\"'])|\d{1,2}[.)]\s)+", "", line[start : match.end()])
        piece = _without_intro(piece, catalog) if position == 0 else _FILLER.sub("", piece)
        entry = parse_line(piece, catalog, reading="lenient")
        if position and entry and entry.index is None and lower_words(entry.title)[0]:  # ", like Collateral (2004)"
            break
        if entry:
            entries.append(entry)
    return entries


def _text_of(value: dict[str, Any], keys: Sequence[str]) -> str | None:
    """Return the text of the first of these keys, in any case, that an object has."""
    texts = {key.lower(): inner for key, inner in value.items() if isinstance(inner, str)}
    return next((texts[key] for key in keys if texts.get(key)), None)


def _json_entry(value: Any, catalog: Catalog) -> Entry | None:
    """Return what a value of a JSON list names: a text, or an object with a title, and perhaps a year and a creator."""
    if isinstance(value, str):
        return parse_line(value, catalog, reading="lenient")
    if not isinstance(value, dict):
        return None
    credit = _text_of(value, _CREDIT_KEYS)
    title = _text_of(value, _TITLE_KEYS) or credit  # a list of artists
    if title is None:
        return None
    years = {key: str(inner) for key, inner in value.items() if isinstance(inner, int | str)}
    written = re.match(r"\d{4}", _text_of(years, _YEAR_KEYS) or "")
    year = int(written.group()) if written else None
    credited = with_credit(title, credit, year, catalog) if credit else None
    return credited or parse_line(title if year is None else f"{title} ({year})", catalog, reading="lenient")


def _json_entries(value: Any, catalog: Catalog) -> list[Entry]:
    """Return the entries of a JSON answer: of the first list in it, of objects before texts, else of the object."""
    if isinstance(value, list):
        return [entry for inner in value if (entry := _json_entry(inner, catalog))]
    if not isinstance(value, dict):
        return []
    lists = [inner for inner in value.values() if isinstance(inner, list) and any(isinstance(v, dict) for v in inner)]
    own = _json_entry(value, catalog)
    found = next((found for inner in lists if (found := _json_entries(inner, catalog))), [own] if own else [])
    return found or next((found for inner in value.values() if (found := _json_entries(inner, catalog))), [])


def _parse_json(text: str, catalog: Catalog) -> list[Entry]:
    """Return the items of the JSON in an answer, whatever stands around it: one value, or an object a line."""
    begin = re.search(r"[\[{]", text)
    values: list[Any] = []
    at = begin.start() if begin and len(text) <= 100 * MAX_LINE else len(text)
    while text[at : at + 1] in ("[", "{"):
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        values.append(value)
        while text[at : at + 1] in (",", " ", "\t", "\r", "\n"):
            at += 1
    objects = [value for value in values if isinstance(value, dict)]
    return _json_entries(objects if len(objects) > 1 else values[0], catalog) if values else []


def _row_text(line: str) -> str | None:
    """Return `Title (Year)` of a row of a table; empty for a head or rule; None for any other line."""
    line = line.strip()
    if not line.startswith("|"):
        return None
    cells = [bare(cell) for cell in line.strip("|").split("|")]
    if any(cell.lower() in ("title", "movie", "film", "name", "year") for cell in cells):
        return ""
    titles = [cell for cell in cells if cell.strip("#.: -") and not cell.strip("#.").isdigit()]
    year = next((cell for cell in cells if cell.isdecimal() and len(cell) == 4), None)
    if not titles:
        return cells[0] if len(cells) == 1 else ""
    return titles[0] if year is None or YEAR.search(titles[0]) else f"{titles[0]} ({year})"


def _lines(text: str, catalog: Catalog) -> Iterator[str]:
    """Yield what may be items: no reasoning, no head of a table, no very long line, nothing blank."""
    thinking = "</think>" in text
    for line in text.split("\n"):
        if thinking:
            thinking = "</think>" not in line
        elif catalog.index_of_line(line) is not None:
            yield line
        elif len(line) > MAX_LINE or line.lstrip().startswith("```"):
            continue
        elif "<li" in line or "<br" in line:
            yield from filter(str.strip, re.split(r"<\s*/?\s*(?:li|br|ol|ul)[^<>]{0,40}>", line))
        else:
            row = _row_text(line)
            yield from filter(str.strip, [line if row is None else row])


def _is_item(entry: Entry, text: str, kind: str, wanted: str, catalog: Catalog) -> bool:
    """Tell whether a line that could name an item is part of the list: no heading, detail, remark or turn."""
    words = len((entry.part or entry.title).split())
    if _SPEAKER.match(text) or text.endswith(":") or _HEADING.match(text):
        return False
    if not kind and entry.year is None and text.endswith("?") and words < len(text.split()):
        return False  # a question to the user, such as "What movie would you like to watch (today)?"
    if _names_item(entry, catalog) and (not wanted or kind == wanted or words == len(text.split())):
        return True
    if _DETAIL.match(text) or (kind != wanted and not (entry.year is not None and _names_item(entry, catalog))):
        return False
    limit = 12 if entry.year is not None else 8 if kind else 4
    if len(entry.title) > MAX_TITLE or (words > limit and is_prose(entry.title)):
        return False
    return bool(kind) or entry.year is not None or (words <= 8 and text[-1] not in ".!?")


def parse_answer(text: str, catalog: Catalog) -> list[Entry]:
    """Return the items that a free answer names, in order.

    Where lines are numbered or have bullets, those of the kind that names more known titles are the list, and of the
    other lines only known titles count.
    """
    clean = [catalog.entry_of_line(line) for line in text.split("\n")]
    if all(clean):
        return [entry for entry in clean if entry]
    if items := _parse_json(text, catalog):
        return items
    read = []
    counts = {"number": [0, 0], "bullet": [0, 0]}
    for line in _lines(text, catalog):
        rest, kind = line.strip(), ""
        known = catalog.entry_of_line(rest)
        if known is None and (number := NUMBER.match(rest)):  # the usual line: an item's own after a number
            rest, kind = rest[number.end() :], "number"
            known = catalog.entry_of_line(rest)
        if known is None:
            rest, kind = unmarked(line, catalog)
        entry = known or parse_line(line, catalog, reading="lenient")
        if entry is None:
            continue
        if kind:
            counts[kind][0] += bool(known or _names_item(entry, catalog))
            counts[kind][1] += 1
        read.append((known, entry, rest, kind))
    wanted = max(counts, key=lambda kind: (counts[kind][0], counts[kind][1] > 0, kind == "number"))
    wanted = wanted if counts[wanted][1] else ""
    entries: list[Entry] = []
    for known, entry, rest, kind in read:
        several = [] if known or rest.endswith(":") or kind != wanted else _by_years(rest, catalog)
        if len(several) > 1:
            entries += several
        elif known or _is_item(entry, rest, kind, wanted, catalog):
            entries.append(entry)
    return entries
