"""The one parser of recommendation lists: written lists line by line, and free answers of language models.

`parse_line` says what one line names. `parse_list` keeps line j at rank j, as the rewards and the evaluation need it;
`parse_answer` finds the list in an answer that may hold prose, headings, tables, JSON, or several titles on a line.
Where a line can be read in several ways, the first reading that the catalog knows counts.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from convrec.data.catalog import YEARS, Catalog

_LABEL = r"(?:movie|film|title|name|option|pick|no|nr|number|recommendation)\.?"
_NUMBER = re.compile(
    rf"^(?:{_LABEL}\s*#?\d{{0,3}}\s*[:.]|#?(?:\(\d{{1,2}}\)|\d{{1,3}}\\?(?:[.)\]]+(?!\d))|\d{{1,2}}(?:[:/]|\s+[-–—])(?=\s)"
    rf"|\d\ufe0f?\u20e3|[ivx]{{1,5}}[.)](?=\s)|[a-z]\)(?=\s)))\s*(?=\S)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^(?:[-*+•‣●○▪·–—→>]\s+|[•‣●○▪→]\s*)+(?=\S)")
_HEADING = re.compile(r"^#{1,6}\s+\S")
_EMPHASIS = re.compile(r"(?<!\w)(\*\*|__|[*`])(?=\S)([^*`]+?)(?<=\S)\1(?!\w)")
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()]*\)")  # markdown: [text](address)
_TAG = re.compile(r"<\s*/?\s*[a-zA-Z]{1,10}\s*/?\s*>")
_YEAR = re.compile(r"\s*[(\[](?:[^()\[\]\d]{0,30}[\s,])?(\d{4})(?:\s?[-–—/]\s?\d{0,4})?(?:[\s,;][^()\[\]]{0,60})?[)\]]")
_BARE_YEAR = re.compile(r"(?:\s*,\s*|\s+[-–—]\s+|\s*—\s*|:\s+)(\d{4})[.\s]*$")
_LAST_WORD_YEAR = re.compile(r"\s+(\d{4})$")
_FIRST_YEAR = re.compile(r"^(\d{4})(?::|\s+[-–—])\s+")
_FORM = r"tv|film|movie|series|miniseries|version|remake|game|documentary|trilogy|special|animated|original"
_NOTE = re.compile(rf"\s*[(\[][^()\[\]]{{0,40}}\b(?:{_FORM})\b[^()\[\]]{{0,40}}[)\]]", re.IGNORECASE)
_CUT = re.compile(r"\s+[-–—~|]+\s+|\s*—\s*|:\s+|,\s+|\s+(?=(?:directed by|starring)\s)", re.IGNORECASE)
_ASIDE = re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*|,?\s+(?:by|aka|a\.k\.a\.|also known as|/)\s+", re.IGNORECASE)
_BRACKETS = re.compile(r"[(\[]([^()\[\]]+)[)\]]")
_SCORE = re.compile(r"\d\.\d|\d/\d|\d\s*%")
_PAIRS = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "*": "*", "_": "_", "`": "`", "„": "“"}
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
_ADVICE = re.compile(r"\b(?:recommend|suggest|try|watch|check out)\s+")
_INTRO = re.compile(r":\s+|\b(?:such as|like|about|try|recommend|suggest|includ(?:e|es|ing)|are|watch)\s+")
_QUOTED = re.compile(r"[\"“]([^\"“”]{1,80})[\"”]|\*\*([^*]{1,80})\*\*")
_NEXT_NUMBER = re.compile(r"[\s,;]+\d{1,2}[.)]\s+")
_SMALL = {
    "a", "an", "and", "as", "at", "but", "by", "for", "from", "in", "into", "is", "of", "on", "or", "the", "to", "with",
}  # fmt: skip
_TITLE_KEYS, _YEAR_KEYS = ("title", "name", "movie", "film", "item"), ("year", "release_year", "releaseYear")
MAX_TITLE = 200  # characters; a longer title is prose
MAX_LINE = 5_000  # characters; a longer line is not read


@dataclass(frozen=True)
class Entry:
    """One item of a list: the title and year as written; `index` is its catalog index, if it has one."""

    title: str
    year: int | None
    index: int | None


class Dropped(NamedTuple):
    """A line (from 1) of an answer, or a part of it, that names no item, and why."""

    line: int
    text: str
    reason: str


class Answer(NamedTuple):
    """What a free answer names, in its order, and what was dropped of it."""

    entries: list[Entry]
    dropped: list[Dropped]


def _bare(text: str) -> str:
    """Return the text without quotes and emphasis around it; a lone apostrophe, as in 'Round Midnight, stays."""
    text = text.strip()
    while len(text) > 1 and text[0] in _PAIRS and text[-1] == _PAIRS[text[0]]:
        text = text[1:-1].strip()
    return text


def _lower_words(text: str) -> tuple[int, int]:
    """Return how many words of a text, those aside that titles write small, are lower case, and how many there are."""
    words = [word for word in text.split() if word[0].isalpha() and word.lower() not in _SMALL]
    return sum(word.islower() for word in words), len(words)


def _is_prose(text: str) -> bool:
    """Tell whether a text reads as a remark, not as a title: most of its words are lower case, or it is very long."""
    lower, words = _lower_words(text)
    return len(text) > MAX_TITLE or lower > words / 2


def _is_remark(separator: str, tail: str) -> bool:
    """Tell whether what follows a title and a dash, colon or comma is a remark, not a part of the title."""
    if separator == ",":
        return tail[:1].islower()
    return bool(_lower_words(tail)[0]) or bool(_SCORE.search(tail)) or (separator != ":" and "," in tail)


def _as_written(text: str) -> tuple[str, int | None]:
    """Return the title and the year of a text by its form alone."""
    years = [match for match in _YEAR.finditer(text) if int(match.group(1)) in YEARS]
    if years:
        last = years[0]
        for later in years[1:]:  # "2012 (2009)" has one; of "Title (1994) (2019)" the last counts
            if text[last.end() : later.start()].strip():
                break
            last = later
        title = _bare(_NOTE.sub("", text[: years[0].start()]).strip(" ,;-–—"))
        if not title:  # the year stands first
            title = _bare(text[last.end() :].strip(" ,;:-–—"))
        return title, int(last.group(1))
    text = _bare(text.rstrip(",;"))
    bare = _BARE_YEAR.search(text)
    if bare and bare.start() and int(bare.group(1)) in YEARS:
        return _bare(text[: bare.start()]), int(bare.group(1))
    return _bare(_NOTE.sub("", text).strip() or text), None


def _readings(title: str, year: int | None) -> Iterator[tuple[str, int | None]]:
    """Yield other readings of a title that the catalog does not know as it is written, the likeliest first."""
    for advice in _ADVICE.finditer(title):  # "I would recommend Heat"
        yield _bare(title[advice.end() :].rstrip(".!")), year
    if year is None:
        last, first = _LAST_WORD_YEAR.search(title), _FIRST_YEAR.match(title)
        if last:
            yield _bare(title[: last.start()]), int(last.group(1))
        if first:
            yield _bare(title[first.end() :]), int(first.group(1))
    for cut in reversed(list(_CUT.finditer(title))):  # the longest head first: "Alien: Covenant - a ship lands"
        separator = cut.group().strip()
        if year is not None or separator in ("", "|") or _is_remark(separator, title[cut.end() :]):
            yield _bare(title[: cut.start()]), year
    asides = list(_ASIDE.finditer(title))
    for aside in asides:
        yield _bare(title[: aside.start()]), year
    if asides:
        yield _bare(_BRACKETS.sub("", title)), year
        for inside in _BRACKETS.findall(title):
            yield _bare(inside), year


def _without_remark(title: str) -> str:
    """Return an unknown title without a remark of lower-case words after a dash or a colon."""
    for cut in reversed(list(_CUT.finditer(title))):
        head, tail = _bare(title[: cut.start()]), title[cut.end() :]
        if head and cut.group().strip() != "," and (_is_prose(tail) or cut.group().strip() in ("", "|")):
            return _without_remark(head) if "|" in head else head
    return title


def _title_and_year(text: str, catalog: Catalog) -> tuple[str, int | None]:
    """Return the title and the year of a text without its number or bullet: the first reading the catalog knows."""
    whole = _bare(text.rstrip(",;"))
    if catalog.readings(whole, None):  # "Class of 1984 - 1999" would lose its end
        return whole, None
    title, year = _as_written(text)
    if catalog.readings(title, year):
        return title, year
    for reading in _readings(title, year):
        if reading[0] and catalog.readings(*reading):
            return reading
    return (title if year is not None else _without_remark(title)), year


def _entry(title: str, year: int | None, catalog: Catalog) -> Entry | None:
    title = " ".join(title.split())
    return Entry(title, year, catalog.find(title, year)) if title else None


def _exact(line: str, catalog: Catalog) -> Entry | None:
    index = catalog.index_of_line(line)
    return None if index is None else Entry(catalog.items[index].title, catalog.items[index].year, index)


def _exact_or_numbered(line: str, catalog: Catalog) -> tuple[Entry | None, tuple[str, str]]:
    """Return the item of a line that is a catalog line, or one after a number, and its mark as of `_unmarked`."""
    known = _exact(line, catalog)
    if known is None and (number := _NUMBER.match(line)):
        rest = line[number.end() :]
        return _exact(rest, catalog), (rest, "number")
    return known, (line, "")


def _unmarked(line: str, catalog: Catalog) -> tuple[str, str]:
    """Return the line without its number or bullet, and which of the two it had: "number", "bullet" or ""."""
    text = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", " ".join(_TAG.sub(" ", line).split())))
    plain = text.lstrip("*_ ")  # **1. Title, its emphasis closed elsewhere
    bullet, number = _BULLET.match(text), _NUMBER.match(plain)
    if number and not catalog.readings(_bare(text), None):  # not a title that begins like a number, as 3:10 to Yuma
        rest = plain[number.end() :].strip()
        again = _NUMBER.match(rest)  # "1. Title: Heat"
        return (rest[again.end() :].strip() if again and again.group()[0].isalpha() else rest), "number"
    if bullet:
        rest, inner = _unmarked(text[bullet.end() :], catalog)
        return rest, inner or "bullet"
    return text, ""


def parse_line(line: str, catalog: Catalog) -> Entry | None:
    """Return what one line names, or None for a line that names nothing (blank, or signs alone)."""
    known = _exact(line, catalog)  # the clean case costs one look-up
    if known is not None:
        return known
    if len(line) > MAX_LINE:
        return _entry(line[:MAX_TITLE], None, catalog)
    text = _bare(_unmarked(line, catalog)[0].rstrip(",; "))
    known = _exact(text, catalog)
    if known is not None or not any(character.isalnum() for character in text):
        return known
    return _entry(*_title_and_year(text, catalog), catalog)


def parse_list(text: str, catalog: Catalog) -> list[Entry | None]:
    """Return one entry for each line of the text, in place; None for a blank line.

    Line j (from 0) of the text is rank j, as in `rl.segmentation`. A final newline opens no rank.
    """
    lines = text.split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    return [parse_line(line, catalog) for line in lines]


def format_list(lines: list[str]) -> str:
    """Return the list format of the method: one `Title (Year)` a line, newline-separated."""
    return "\n".join(lines)


def _known(text: str, catalog: Catalog) -> bool:
    return bool(catalog.readings(text, None))


def _without_intro(text: str, catalog: Catalog) -> tuple[str, bool]:
    """Return a part of a sentence from where its title begins, and whether an introduction stood before it."""
    text = _bare(_FILLER.sub("", text))
    if _known(text, catalog):
        return text, False
    for intro in reversed(list(_INTRO.finditer(text))):
        before = text[: intro.start()] if intro.group().startswith(":") else text[: intro.end()]
        if _lower_words(before)[0] or not before.strip():
            return _bare(_FILLER.sub("", text[intro.end() :])), True
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
        pair = [_bare(part) for part in re.split(r"\s+(?:and|or)\s+", joined)]
        both = not _known(joined, catalog) and all(_known(part, catalog) for part in pair)
        found += [part for part in (pair if both else [joined]) if part and not _is_prose(part)]
        last = bool(_LAST.match(parts[start]))
        start = end
        if last and not any(_INTRO.search(part) or _known(part, catalog) for part in parts[start:]):
            break
    return found, introduced


def _by_years(line: str, catalog: Catalog) -> list[Entry]:
    """Return the entries of a line of titles with years between separators; of a remark after them nothing."""
    years = [match for match in _YEAR.finditer(line) if int(match.group(1)) in YEARS]
    gaps = [line[a.end() : b.start()] for a, b in zip(years, years[1:], strict=False)]
    divider = r"[\s\"'”*_]*(?:[,;|/&+]|and\s|or\s|\d{1,2}[.)]\s)"
    if not gaps or not all(re.match(divider, gap) and len(gap) < MAX_TITLE for gap in gaps):
        return []
    starts = [0, *(match.end() for match in years[:-1])]
    entries: list[Entry] = []
    for position, (start, match) in enumerate(zip(starts, years, strict=True)):
        piece = re.sub(r"^(?:[\s,;|/&+.\"'”*_\]]+|\[(?=[\"'])|\d{1,2}[.)]\s)+", "", line[start : match.end()])
        piece = _without_intro(piece, catalog)[0] if position == 0 else _FILLER.sub("", piece)
        entry = parse_line(piece, catalog)
        if position and entry and entry.index is None and _lower_words(entry.title)[0]:  # ", like Collateral (2004)"
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
        return [entry for part in numbered if (entry := parse_line(part, catalog))]
    if by_years := _by_years(line, catalog):
        return by_years
    parts, introduced = _fragments(line, catalog)
    known = sum(_known(part, catalog) for part in parts)
    if len(parts) >= 3 and known >= (1 if introduced else max(2, len(parts) / 2)):
        return [entry for part in parts if (entry := _entry(*_title_and_year(part, catalog), catalog))]
    return []


def _quoted(line: str, catalog: Catalog) -> list[Entry]:
    """Return the known titles that stand in quotes or bold within a sentence."""
    found = [parse_line(quoted or bold, catalog) for quoted, bold in _QUOTED.findall(line)]
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
    return [entry for item in _json_items(_json(text[min(begins) : ends + 1])) if (entry := parse_line(item, catalog))]


def _row_text(line: str) -> str | None:
    """Return `Title (Year)` of a row of a table or a JSON object on a line; empty for a head or rule; else None."""
    line = line.strip()
    if line.startswith("{") and line.rstrip(",").endswith("}"):
        return _item_text(_json(line.rstrip(",")))
    if not line.startswith("|"):
        return None
    cells = [_bare(cell) for cell in line.strip("|").split("|")]
    if any(cell.lower() in ("title", "movie", "film", "name", "year") for cell in cells):
        return ""
    titles = [cell for cell in cells if cell.strip("#.: -") and not cell.strip("#.").isdigit()]
    year = next((cell for cell in cells if cell.isdecimal() and len(cell) == 4), None)
    if not titles:
        return cells[0] if len(cells) == 1 else ""
    return titles[0] if year is None or _YEAR.search(titles[0]) else f"{titles[0]} ({year})"


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
    if len(entry.title) > MAX_TITLE or (words > limit and _is_prose(entry.title)):
        return "prose"
    return "prose" if plain and (words > 8 or text[-1] in ".!?") else None


def parse_answer(text: str, catalog: Catalog) -> Answer:
    """Return the items that a free answer names, and each line that was dropped, with the reason.

    Where lines are numbered or have bullets, those of the kind that names more known titles are the list, and of the
    other lines only known titles count.
    """
    clean = [_exact(line, catalog) for line in text.split("\n")]
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
            rest, kind = _unmarked(line, catalog)
            entry = parse_line(line, catalog)
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
