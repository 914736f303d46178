"""Free answers of language models: where in them the list is, in prose, headings, tables, JSON or a single line."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from convrec.data.catalog import Catalog
from convrec.data.titles import WRITTEN_YEARS
from convrec.parsing import (
    MAX_LINE,
    MAX_TITLE,
    NUMBER,
    YEAR,
    Entry,
    bare,
    is_prose,
    lower_words,
    make_entry,
    parse_line,
    title_and_year,
    unmarked,
)

_HEADING = re.compile(r"^#{1,6}\s+\S")
_SPEAKER = re.compile(r"^(?:user|system|assistant|seeker|recommender)\s*:", re.IGNORECASE)
_DETAIL = re.compile(
    r"^(?:reason|why|genres?|director|directed by|stars?|starring|cast|plot|summary|synopsis|description|notes?|year"
    r"|rating|imdb|release(?:d| year| date)?)\s*:",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(  # a full stop not after Mr., Vol., E.T., unless a sentence clearly begins
    r"[,;]|(?<=[a-z]{4})[.?!]\s+|[.?!]\s+(?=(?:And|Also|Enjoy|For|Hope|I|If|Let|Or|Other|You)\b)"
)
_FILLER = re.compile(r"^(?:(?:and|or|also|then|maybe|perhaps|sure|how about|what about|try)\s+)+", re.IGNORECASE)
_LAST = re.compile(r"^(?:and|or)\s", re.IGNORECASE)
_INTRO = re.compile(r":\s+|\b(?:such as|like|about|try|recommend|suggest|includ(?:e|es|ing)|are|watch)\s+")
_QUOTED = re.compile(r"[\"“]([^\"“”]{1,80})[\"”]|\*\*([^*]{1,80})\*\*")
_NEXT_NUMBER = re.compile(r"[\s,;]+\d{1,2}[.)]\s+")
_TITLE_KEYS, _YEAR_KEYS = ("title", "name", "movie", "film", "item"), ("year", "release_year", "releaseYear")


class Dropped(NamedTuple):
    """A line (from 1) of an answer, or a part of it, that names no item, and why."""

    line: int
    text: str
    reason: str


class Answer(NamedTuple):
    """What a free answer names, in its order, and what was dropped of it."""

    entries: list[Entry]
    dropped: list[Dropped]


def _exact_or_numbered(line: str, catalog: Catalog) -> tuple[Entry | None, tuple[str, str]]:
    """Return the item of a line that is a catalog line, or one after a number, and its mark as of `unmarked`."""
    known = catalog.entry_of_line(line)
    if known is None and (number := NUMBER.match(line)):
        rest = line[number.end() :]
        return catalog.entry_of_line(rest), (rest, "number")
    return known, (line, "")


def _known(text: str, catalog: Catalog) -> bool:
    return bool(catalog.readings(text, None))


def _without_intro(text: str, catalog: Catalog) -> tuple[str, bool]:
    """Return a part of a sentence from where its title begins, and whether an introduction stood before it."""
    text = bare(_FILLER.sub("", text))
    if _known(text, catalog):
        return text, False
    for intro in reversed(list(_INTRO.finditer(text))):
        before = text[: intro.start()] if intro.group().startswith(":") else text[: intro.end()]
        if lower_words(before)[0] or not before.strip():
            return bare(_FILLER.sub("", text[intro.end() :])), True
    return text, False


def _fragments(text: str, catalog: Catalog) -> tuple[list[str], bool]:
    """Return the parts of a text between its commas that could be titles, and whether an introduction stood before.

    Parts that together are a known title stay together; what an introduction leaves behind is dropped, and what comes
    after the part that begins with "and" or "or".
    """
    parts = [part.strip().rstrip(".!?") for part in _SEPARATOR.split(text) if part.strip(" .!?")]
    found: list[str] = []
    introduced, start = False, 0
    while start < len(parts):
        first, intro = _without_intro(parts[start], catalog)
        for end in range(min(len(parts), start + 5), start, -1):
            joined = ", ".join([first, *parts[start + 1 : end]])
            if end == start + 1 or _known(joined, catalog):
                break
        if intro and not introduced:
            found = []
        introduced |= intro
        pair = [bare(part) for part in re.split(r"\s+(?:and|or)\s+", joined)]
        both = not _known(joined, catalog) and all(_known(part, catalog) for part in pair)
        found += [part for part in (pair if both else [joined]) if part and not is_prose(part)]
        last = bool(_LAST.match(parts[start]))
        start = end
        if last and not any(_INTRO.search(part) or _known(part, catalog) for part in parts[start:]):
            break
    return found, introduced


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
        piece = _without_intro(piece, catalog)[0] if position == 0 else _FILLER.sub("", piece)
        entry = parse_line(piece, catalog, reading="lenient")
        if position and entry and entry.index is None and lower_words(entry.title)[0]:  # ", like Collateral (2004)"
            break
        if entry:
            entries.append(entry)
    return entries


def _several(line: str, catalog: Catalog) -> list[Entry]:
    """Return the entries of a line that clearly names several items, else none.

    Clear are titles with years, or numbers, between separators, and three or more possible titles between commas if
    the catalog knows half of them, or one of them where an introduction ("Here are some films: ") stands before.
    """
    numbered = _NEXT_NUMBER.split(line)
    if len(numbered) > 1 and len(numbered) == 1 + sum(f"{n}." in line or f"{n})" in line for n in range(2, 30)):
        return [entry for part in numbered if (entry := parse_line(part, catalog, reading="lenient"))]
    if by_years := _by_years(line, catalog):
        return by_years
    parts, introduced = _fragments(line, catalog)
    known = sum(_known(part, catalog) for part in parts)
    if len(parts) >= 3 and known >= (1 if introduced else max(2, len(parts) / 2)):
        return [entry for part in parts if (entry := make_entry(*title_and_year(part, catalog), catalog))]
    return []


def _quoted(line: str, catalog: Catalog) -> list[Entry]:
    """Return the known titles that stand in quotes or bold within a sentence."""
    found = [parse_line(quoted or bold, catalog, reading="lenient") for quoted, bold in _QUOTED.findall(line)]
    return [entry for entry in found if entry and catalog.readings(entry.title, entry.year)]


def _item_text(value: Any) -> str | None:
    """Return `Title (Year)` of a value of a JSON list: a text, or an object with a title."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        title = next((value[key] for key in _TITLE_KEYS if isinstance(value.get(key), str)), None)
        year = next((value[key] for key in _YEAR_KEYS if isinstance(value.get(key), int | str)), None)
        return title if title is None or year is None else f"{title} ({year})"
    return None


def _json_items(value: Any) -> list[str]:
    """Return the items of a JSON answer: of the first list in it that holds any."""
    if isinstance(value, dict):
        own = _item_text(value)
        return [own] if own else next((items for inner in value.values() if (items := _json_items(inner))), [])
    if isinstance(value, list):
        return [text for inner in value if (text := _item_text(inner))]
    return []


def _json(text: str) -> Any:
    """Return the JSON value that a text holds, else None."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_json(text: str, catalog: Catalog) -> list[Entry]:
    """Return the items of the JSON in an answer, whatever stands around it."""
    begins, ends = [at for at in map(text.find, "[{") if at >= 0], max(text.rfind("]"), text.rfind("}"))
    if not begins or len(text) > 100 * MAX_LINE:
        return []
    return [
        entry
        for item in _json_items(_json(text[min(begins) : ends + 1]))
        if (entry := parse_line(item, catalog, reading="lenient"))
    ]


def _row_text(line: str) -> str | None:
    """Return `Title (Year)` of a row of a table or a JSON object on a line; empty for a head or rule; else None."""
    line = line.strip()
    if line.startswith("{") and line.rstrip(",").endswith("}"):
        return _item_text(_json(line.rstrip(",")))
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


def _lines(text: str, catalog: Catalog) -> Iterator[tuple[int, str, str | None]]:
    """Yield each line of an answer with its number and, if it can be no item whatever it says, why."""
    thinking = "</think>" in text
    for number, line in enumerate(text.split("\n"), start=1):
        if catalog.index_of_line(line) is not None and not thinking:
            yield number, line, None
        elif thinking:
            thinking = "</think>" not in line
            yield number, line, "reasoning"
        elif len(line) > MAX_LINE:
            yield number, line, f"longer than {MAX_LINE} characters"
        elif line.lstrip().startswith("```"):
            yield number, line, "no words"
        elif "<li" in line or "<br" in line:
            for part in re.split(r"<\s*/?\s*(?:li|br|ol|ul)[^<>]{0,40}>", line):
                yield number, part, None
        else:
            row = _row_text(line)
            yield number, line if row is None else row, "a heading" if row == "" else None


def _reason_to_drop(entry: Entry, text: str, kind: str, wanted: str, catalog: Catalog) -> str | None:
    """Return why a line that could name an item is none of the list, else None."""
    words = len(entry.title.split())
    if _SPEAKER.match(text):
        return "a turn of the dialogue"
    if text.endswith(":") or _HEADING.match(text):
        return "a heading"
    if catalog.readings(entry.title, entry.year) and (not wanted or kind == wanted or words == len(text.split())):
        return None
    if _DETAIL.match(text):
        return "a detail"
    if kind != wanted and not (entry.year is not None and catalog.readings(entry.title, entry.year)):
        return f"not part of the {'numbered' if wanted == 'number' else 'bulleted'} list"
    limit = 12 if entry.year is not None else 8 if kind else 4
    plain = not kind and entry.year is None
    if len(entry.title) > MAX_TITLE or (words > limit and is_prose(entry.title)):
        return "prose"
    return "prose" if plain and (words > 8 or text[-1] in ".!?") else None


def parse_answer(text: str, catalog: Catalog) -> Answer:
    """Return the items that a free answer names, and each line that was dropped, with the reason.

    Where lines are numbered or have bullets, those of the kind that names more known titles are the list, and of the
    other lines only known titles count.
    """
    clean = [catalog.entry_of_line(line) for line in text.split("\n")]
    if all(clean):
        return Answer([entry for entry in clean if entry], [])
    if ("{" in text or "[" in text) and (items := _parse_json(text, catalog)):
        return Answer(items, [])
    lines, read = list(_lines(text, catalog)), []
    counts = {"number": [0, 0], "bullet": [0, 0]}
    for _, line, reason in lines:
        known, (rest, kind) = _exact_or_numbered(line.strip(), catalog)
        entry = known
        if known is None and reason is None and line.strip():
            rest, kind = unmarked(line, catalog)
            entry = parse_line(line, catalog, reading="lenient")
        read.append((known, entry, rest, kind))
        if kind and entry and reason is None:
            counts[kind][0] += bool(known or catalog.readings(entry.title, entry.year))
            counts[kind][1] += 1
    wanted = max(counts, key=lambda kind: (counts[kind][0], counts[kind][1] > 0, kind == "number"))
    wanted = wanted if counts[wanted][1] else ""
    entries: list[Entry] = []
    dropped: list[Dropped] = []
    for (number, line, reason), (known, entry, rest, kind) in zip(lines, read, strict=True):
        if not line.strip() and reason is None:
            continue
        if reason is None and known is None:
            several = [] if rest.endswith(":") or kind != wanted else _several(rest, catalog)
            if len(several) > 1:
                entries += several
                continue
            if entry is None:
                reason = "no words"
            else:
                reason = _reason_to_drop(entry, rest, kind, wanted, catalog)
                if reason and not wanted and (quoted := _quoted(line, catalog)):
                    entries += quoted
                    continue
        if reason:
            dropped.append(Dropped(number, line.strip()[:MAX_TITLE], reason))
        elif entry:
            entries.append(entry)
    return Answer(entries, dropped)
