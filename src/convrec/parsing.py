"""The one parser of recommendation lists: written lists line by line, and free answers of language models.

`parse_line` says what one line names. `parse_list` keeps line j at rank j, as the rewards and the evaluation need it;
`parse_answer` finds the list in an answer that may hold prose, headings, or several titles on a line.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from convrec.data.catalog import YEARS, Catalog

_NUMBER = re.compile(r"^#?(?:\(\d{1,2}\)|\d{1,3}(?:[.)\]]+(?!\d))|\d{1,2}(?::|\s+[-–—])(?=\s))\s*(?=\S)")
_BULLET = re.compile(r"^(?:[-*+•‣●○▪·–—→>]\s+|[•‣●○▪→]\s*|#{1,6}\s+)+(?=\S)")
_EMPHASIS = re.compile(r"(?<!\w)(\*\*|__|[*`])(?=\S)([^*`]+?)(?<=\S)\1(?!\w)")
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()]*\)")  # markdown: [text](address)
_YEAR = re.compile(r"\s*[(\[](?:[^()\[\]\d]{0,30}[\s,])?(\d{4})(?:\s?[-–—/]\s?\d{0,4})?(?:[\s,;][^()\[\]]{0,60})?[)\]]")
_FORM = r"tv|film|movie|series|miniseries|version|remake|game|documentary|trilogy|special|animated|original"
_NOTE = re.compile(rf"\s*[(\[][^()\[\]]{{0,40}}\b(?:{_FORM})\b[^()\[\]]{{0,40}}[)\]]", re.IGNORECASE)
_DASH = re.compile(r"\s+[-–—~|]+\s+|\s*—\s*|:\s+|\s+(?=(?:directed by|starring)\s)", re.IGNORECASE)
_PAIRS = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "*": "*", "_": "_", "`": "`", "„": "“", "<": ">"}
_SPEAKER = re.compile(r"^(?:user|system|assistant|seeker|recommender)\s*:", re.IGNORECASE)
_SEPARATOR = re.compile(r"[,;]|(?<=[a-z]{4})[.?!]\s+")  # not after Mr., Vol., E.T.
_FILLER = re.compile(r"^(?:(?:and|or|also|then|maybe|perhaps|sure|how about|what about|try)\s+)+", re.IGNORECASE)
_INTRO = re.compile(r":\s+|\b(?:such as|like|about|try|recommend|suggest|includ(?:e|es|ing)|are)\s+")
_SMALL = frozenset(
    [
        "a",
        "an",
        "and",
        "as",
        "at",
        "but",
        "by",
        "for",
        "from",
        "in",
        "into",
        "is",
        "of",
        "on",
        "or",
        "the",
        "to",
        "vs",
        "with",
    ]
)
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
    while len(text) > 1:
        if text[0] in _PAIRS and text[-1] == _PAIRS[text[0]]:
            text = text[1:-1].strip()
        else:
            break
    return text


def _is_prose(text: str) -> bool:
    """Tell whether a text reads as a remark, not as a title: most of its words are lower case, or it is very long."""
    words = [word for word in text.split() if word[0].isalpha() and word.lower() not in _SMALL]
    lower = sum(word.islower() for word in words)
    return len(text) > MAX_TITLE or lower > len(words) / 2


def _without_comment(title: str, catalog: Catalog) -> str:
    """Return the title of a line without a year, up to the dash or colon after which a remark begins.

    A title of the catalog in any spelling stays whole, and so does one whose second part reads as a title.
    """
    if catalog.readings(title, None):
        return title
    for separator in _DASH.finditer(title):
        head, tail = _bare(title[: separator.start()]), title[separator.end() :]
        if not head:
            continue
        words = len(tail.split())
        listed = separator.group().strip() == "" or "," in tail or words > 6
        if _is_prose(tail) or (listed and catalog.readings(head, None)) or separator.group().strip() == "|":
            return head
    return title


def _title_and_year(text: str, catalog: Catalog) -> tuple[str, int | None]:
    """Return the title and the year of a text without its number or bullet."""
    years = [match for match in _YEAR.finditer(text) if int(match.group(1)) in YEARS]
    if years:
        first = years[0]
        for later in years[1:]:  # "2012 (2009)" has one; of "Title (1994) (2019)" the last counts
            if text[first.end() : later.start()].strip():
                break
            first = later
        title = _bare(_NOTE.sub("", text[: years[0].start()]).strip(" ,;-–—"))
        if not title:  # the year stands first
            title = _bare(text[first.end() :].strip(" ,;:-–—"))
        return title, int(first.group(1))
    title = _bare(text.rstrip(",;"))
    return _bare(_without_comment(_NOTE.sub("", title).strip() or title, catalog)), None


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
    text = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", " ".join(line.split())))
    plain = text.lstrip("*_ ")  # **1. Title, its emphasis closed elsewhere
    bullet, number = _BULLET.match(text), _NUMBER.match(plain)
    if number and not catalog.readings(_bare(text), None):  # not a title that begins like a number, as 3:10 to Yuma
        return plain[number.end() :].strip(), "number"
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


def _without_intro(text: str, catalog: Catalog) -> tuple[str, bool]:
    """Return a part of a sentence from where its title begins, and whether an introduction stood before it."""
    text = _bare(_FILLER.sub("", text))
    if catalog.readings(text, None):
        return text, False
    for intro in reversed(list(_INTRO.finditer(text))):
        before = text[: intro.start()] if intro.group().startswith(":") else text[: intro.end()]
        if _is_prose(before) or not before.strip():
            return _bare(_FILLER.sub("", text[intro.end() :])), True
    return text, False


def _fragments(text: str, catalog: Catalog) -> tuple[list[str], bool]:
    """Return the parts of a text between its commas that could be titles, and whether an introduction stood before.

    Parts that together are a known title stay together; what an introduction leaves behind is dropped.
    """
    parts = [part.strip().rstrip(".!?") for part in _SEPARATOR.split(text) if part.strip(" .!?")]
    found: list[str] = []
    introduced, start = False, 0
    while start < len(parts):
        for end in range(min(len(parts), start + 5), start, -1):
            joined, intro = _without_intro(", ".join(parts[start:end]), catalog)
            if end == start + 1 or catalog.readings(joined, None):
                break
        if intro and not introduced:
            found = [part for part in found if catalog.readings(part, None)]
        introduced |= intro
        pair = [_bare(part) for part in re.split(r"\s+(?:and|or)\s+", joined)]
        both = not catalog.readings(joined, None) and all(catalog.readings(part, None) for part in pair)
        found += [part for part in (pair if both else [joined]) if part and not _is_prose(part)]
        start = end
    return found, introduced


def _several(line: str, catalog: Catalog) -> list[Entry]:
    """Return the entries of a line that clearly names several items, else none.

    Clear are two or more years in brackets, each after a title, and three or more possible titles between commas if
    the catalog knows half of them, or one of them where an introduction ("Here are some films: ") stands before.
    """
    years = [match for match in _YEAR.finditer(line) if int(match.group(1)) in YEARS]
    gaps = [line[a.end() : b.start()] for a, b in zip(years, years[1:], strict=False)]
    if gaps and all(re.match(r"[\s\"'”*_]*(?:[,;|/&+]|and\s|or\s)", gap) and len(gap) < MAX_TITLE for gap in gaps):
        starts = [0, *(match.end() for match in years[:-1])]
        pieces = [line[start : match.end()] for start, match in zip(starts, years, strict=True)]
        pieces = [_FILLER.sub("", re.sub(r"^(?:[\s,;|/&+.\"'”*_\]]+|\[(?=[\"']))+", "", piece)) for piece in pieces]
        pieces[0] = _without_intro(pieces[0], catalog)[0]
        return [entry for piece in pieces if (entry := parse_line(piece, catalog))]
    parts, introduced = _fragments(line, catalog)
    known = sum(bool(catalog.readings(part, None)) for part in parts)
    if len(parts) < 3 or known < (1 if introduced else max(2, len(parts) / 2)):
        return []
    return [entry for part in parts if (entry := _entry(*_title_and_year(part, catalog), catalog))]


def _is_remark(entry: Entry, text: str, marked: bool) -> bool:
    """Tell whether a line that could be an item of the list is rather a remark, by its length and its form."""
    words = len(entry.title.split())
    limit = 12 if entry.year is not None else 8 if marked else 4
    if words > limit and _is_prose(entry.title):
        return True
    plain = not marked and entry.year is None
    return len(entry.title) > MAX_TITLE or (plain and (words > 8 or text[-1] in ".!?"))


def parse_answer(text: str, catalog: Catalog) -> Answer:
    """Return the items that a free answer names, and each line that was dropped, with the reason.

    Where some lines are numbered, or else begin with bullets, these are the list, and of the others known titles alone
    count.
    """
    lines = text.split("\n")
    exact, marks = [], []
    for line in lines:
        known, mark = _exact_or_numbered(line.strip(), catalog)
        exact.append(known)
        marks.append(mark if known or len(line) > MAX_LINE else _unmarked(line, catalog))
    kinds = {kind for _, kind in marks}
    wanted = next((kind for kind in ("number", "bullet") if kind in kinds), "")
    entries: list[Entry] = []
    dropped: list[Dropped] = []
    for position, (line, known, (rest, kind)) in enumerate(zip(lines, exact, marks, strict=True), start=1):
        if known is not None:
            entries.append(known)
            continue
        if not line.strip():
            continue
        if len(line) > MAX_LINE:
            dropped.append(Dropped(position, line.strip()[:MAX_TITLE], f"longer than {MAX_LINE} characters"))
            continue
        several = [] if rest.endswith(":") else _several(rest, catalog)
        entry = parse_line(line, catalog)
        title = "" if entry is None else entry.title
        reason = None
        if several:
            entries += several
        elif entry is None:
            reason = "no words"
        elif catalog.readings(title, entry.year) and not rest.endswith(":"):
            entries.append(entry)
        elif _SPEAKER.match(rest):
            reason = "a turn of the dialogue"
        elif rest.endswith(":"):
            reason = "a heading"
        elif kind != wanted:
            reason = f"not part of the {wanted}ed list" if wanted == "bullet" else "not part of the numbered list"
        elif _is_remark(entry, rest, bool(kind)):
            reason = "prose"
        else:
            entries.append(entry)
        if reason:
            dropped.append(Dropped(position, line.strip()[:MAX_TITLE], reason))
    return Answer(entries, dropped)
