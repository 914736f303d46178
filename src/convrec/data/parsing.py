"""The parser of recommendation lists: the item of each written line, and the rank of each line.

The reading of a line is `strict` for the lists of a policy and for lists that are scored: only list marks (number,
bullet, emphasis, quotes) and what follows the closing year are taken off, and the rest names an item only if it is
the item's whole title. It is `lenient` for a teacher's prose: subtitles, prefixes and remarks are also taken off, and
the first reading that the catalog knows counts. Free answers, in which the list has to be found first, are read
leniently by `convrec.demonstrations.answers`.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Entry
from convrec.data.titles import WRITTEN_YEAR, WRITTEN_YEARS, YEARS, fold, natural, normalise, normalise_text

NUMBER = re.compile(
    r"^#?(?:\(\d{1,2}\)|\d{1,3}\\?(?:[.)\]]+(?!\d))|\d{1,2}(?:[:/]|\s+[-–—])(?=\s)"
    r"|\d\ufe0f?\u20e3|[ivx]{1,5}[.)](?=\s)|[a-z]\)(?=\s))\s*(?=\S)",
    re.IGNORECASE,
)
_NUMBER_ALONE = re.compile(r"\W*\d{1,3}\W*[.):\]]\W*")
_LABEL = re.compile(
    r"^(?:movie|film|title|name|option|pick|no|nr|number|recommendation)\.?\s*#?\d{0,3}\s*[:.]\s*(?=\S)",
    re.IGNORECASE,
)
_BULLET = re.compile(r"^(?:[-*+•‣●○▪·–—→>]\s+|[•‣●○▪→]\s*)+(?=\S)")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,3}|__|`)(?=\S)([^*`]+?)(?<=\S)\1(?![\w*])")
_LINK = re.compile(r"\[([^\[\]]+)\]\([^()]*\)")  # markdown: [text](address)
_TAG = re.compile(r"<\s*/?\s*(?:b|i|em|strong|u|mark|code|span|p|li|ol|ul|br|td|tr|h[1-6])\s*/?\s*>", re.IGNORECASE)
YEAR = re.compile(rf"\s*[(\[](?:[^()\[\]\d]{{0,30}}[\s,])?{WRITTEN_YEAR}(?:[\s,;][^()\[\]]{{0,60}})?[)\]]")
_CLOSING_YEAR = re.compile(rf"[(\[]\s*{WRITTEN_YEAR}(?:[\s,;][^()\[\]]{{0,60}})?[)\]]")
_BARE_YEAR = re.compile(r"(?:\s*,\s*|\s+[-–—]\s+|\s*—\s*)(\d{4})[.\s]*$")
_LAST_WORD_YEAR = re.compile(r":?\s+(\d{4})$")
_FORM = r"tv|film|movie|series|miniseries|version|remake|game|documentary|trilogy|special|animated|original"
_NOTE = re.compile(rf"\s*[(\[][^()\[\]]{{0,40}}\b(?:{_FORM})\b[^()\[\]]{{0,40}}[)\]]", re.IGNORECASE)
_CUT = re.compile(r"\s+[-–—~|]+\s+|\s*—\s*|:\s+|,\s+|\s+(?=(?:directed by|starring)\s)", re.IGNORECASE)
_ASIDE = re.compile(r"\s*[(\[][^()\[\]]*[)\]]\s*|,?\s+(?:by|aka|a\.k\.a\.|also known as|/)\s+", re.IGNORECASE)
_CREDIT = re.compile(r"\s+[-–—~|]+\s+|\s*—\s*|:\s+|,\s+|,?\s+(?:(?:directed|written) )?by\s+|\s*[(\[]", re.IGNORECASE)
_BY = re.compile(r"by\s", re.IGNORECASE)
_LAST_ASIDE = re.compile(r"\s*[(\[]([^()\[\]]+)[)\]][.\s]*$")
_BRACKETS = re.compile(r"[(\[]([^()\[\]]+)[)\]]")
_SCORE = re.compile(r"\d\.\d|\d/\d|\d\s*%")
_PAIRS = {'"': '"', "'": "'", "“": "”", "‘": "’", "«": "»", "*": "*", "_": "_", "`": "`", "„": "“"}
_SMALL = {
    "a", "an", "and", "as", "at", "but", "by", "for", "from", "in", "into", "is", "of", "on", "or", "the", "to", "with",
}  # fmt: skip
# A line that has nothing to take off but its year; most unknown ones are such, and need no further reading.
_PLAIN = re.compile(
    r"(?![ivx]{1,5}\.)[a-z][a-z0-9 '.:!?/-]*+(?<= )\((?:1\d|20)\d\d\)", re.ASCII | re.IGNORECASE
).fullmatch
MAX_TITLE = 200  # characters; a longer title is prose
MAX_LINE = 5_000  # characters; a longer line is not read


def _is_blank(text: str) -> bool:
    """Return whether a text names nothing: only signs, or the number of an empty line ("9.")."""
    return not any(character.isalnum() for character in text) or _NUMBER_ALONE.fullmatch(text) is not None


def bare(text: str) -> str:
    """Return the text without quotes and emphasis around it; a lone apostrophe, as in 'Round Midnight, stays."""
    text = text.strip()
    while len(text) > 1 and text[0] in _PAIRS and text[-1] == _PAIRS[text[0]]:
        text = text[1:-1].strip()
    return text


def lower_words(text: str) -> tuple[int, int]:
    """Return how many words of a text, those aside that titles write small, are lower case, and how many there are."""
    words = [word for word in text.split() if word[0].isalpha() and word.lower() not in _SMALL]
    return sum(word.islower() for word in words), len(words)


def is_prose(text: str) -> bool:
    """Tell whether a text reads as a remark, not as a title: most of its words are lower case, or it is very long."""
    lower, words = lower_words(text)
    return len(text) > MAX_TITLE or lower > words / 2


def _is_remark(separator: str, tail: str) -> bool:
    """Tell whether what follows a title and a dash, colon or comma is a remark, not a part of the title."""
    if separator == ",":
        return tail[:1].islower()
    return bool(lower_words(tail)[0]) or bool(_SCORE.search(tail)) or (separator != ":" and "," in tail)


def _as_written(text: str) -> tuple[str, int | None]:
    """Return the title and the year of a text by its form alone."""
    years = [match for match in YEAR.finditer(text) if int(match.group(1)) in WRITTEN_YEARS]
    if years:
        last = years[0]
        for later in years[1:]:  # "2012 (2009)" has one; of "Title (1994) (2019)" the last counts
            if text[last.end() : later.start()].strip():
                break
            last = later
        title = bare(_NOTE.sub("", text[: years[0].start()]).strip(" ,;-–—"))
        if not title:  # the year stands first
            title = bare(text[last.end() :].strip(" ,;:-–—"))
        return title, int(last.group(1))
    text = bare(text.rstrip(",;"))
    year = _BARE_YEAR.search(text)
    if year and year.start() and int(year.group(1)) in WRITTEN_YEARS:
        return bare(text[: year.start()]), int(year.group(1))
    return bare(_NOTE.sub("", text).strip() or text), None


def _readings(title: str, year: int | None, catalog: Catalog, tolerance: int) -> Iterator[tuple[str, int | None]]:
    """Yield readings of an unknown title without the remarks behind it, the likeliest first.

    A last word such as 2049 is a year only if an item of that title has it: "Blade Runner 2049" is no "Blade Runner".
    """
    last = _LAST_WORD_YEAR.search(title)
    if year is None and last:
        head, own_year = bare(title[: last.start()]), int(last.group(1))
        if any(catalog.items[index].year is not None for index in catalog.readings(head, own_year, tolerance)):
            yield head, own_year
    for cut in reversed(list(_CUT.finditer(title))):  # the longest head first: "Alien: Covenant - a ship lands"
        separator = cut.group().strip()
        if separator in ("", "|") or _is_remark(separator, title[cut.end() :]):
            yield bare(title[: cut.start()]), year


def _parts(title: str, year: int | None) -> Iterator[str]:
    """Yield the parts that an unknown title may be cut to, the longest head first.

    A title without a year is not cut at a dash, colon or comma: "Alien: Covenant" is no "Alien".
    """
    for cut in reversed(list(_CUT.finditer(title))) if year is not None else ():
        yield bare(title[: cut.start()])
    asides = list(_ASIDE.finditer(title))
    for aside in asides:
        yield bare(title[: aside.start()])
    if asides:
        head = bare(_BRACKETS.sub("", title))
        yield head
        if not is_prose(head):
            yield from map(bare, _BRACKETS.findall(title))


def with_credit(
    title: str, credit: str, year: int | None, catalog: Catalog, tolerance: int = YEAR_TOLERANCE
) -> Entry | None:
    """Return the entry of a title beside a value of its item's metadata (an author, an artist), else None."""
    name = normalise(credit)
    found = [
        index
        for index in (catalog.readings(title, year, tolerance) if name else ())
        for text in catalog.items[index].metadata.values()
        if name in (normalise(text), *map(normalise, text.split(", ")))
    ]
    if not found:
        return None
    named = {index for index in found if index in catalog.indices_of_title(title)}
    return Entry(title, year, named.pop()) if len(named) == 1 else make_entry(title, year, catalog, tolerance)


def _credited(text: str, year: int | None, catalog: Catalog, tolerance: int) -> Entry | None:
    """Return the item that a text names with its credit: `Title - Author`, `Title by Author`, `Artist - Title`."""
    for cut in _CREDIT.finditer(text) if len(text) <= MAX_TITLE else ():
        first, last = bare(text[: cut.start()]), bare(text[cut.end() :].rstrip(")]"))
        for title, credit in ((first, last), (last, first)):
            if entry := with_credit(title, credit, year, catalog, tolerance):
                return entry
    return None


def _without_remark(title: str, year: int | None) -> str:
    """Return an unknown title without a remark of lower-case words in brackets.

    Without a year, such a remark after a dash or a colon, and what a bar divides, are also taken off.
    """
    aside = _LAST_ASIDE.search(title)
    if aside and aside.start() and aside.group(1).count(" ") > 1 and is_prose(aside.group(1)):
        title = bare(title[: aside.start()])
    for cut in _CUT.finditer(title) if year is None else ():
        separator, head = cut.group().strip(), bare(title[: cut.start()])
        if head and (separator in ("", "|") or (separator != "," and is_prose(title[cut.end() :]))):
            return head
    return title


def read_title(text: str, catalog: Catalog, tolerance: int = YEAR_TOLERANCE) -> Entry | None:
    """Return what a text without number or bullet names, read leniently: the first reading that the catalog knows.

    Where the catalog knows only a part of the title, the title stays whole and the entry has that `part`, no index.
    """
    whole = bare(text.rstrip(",;"))
    if catalog.readings(whole, None):  # "Class of 1984 - 1999" would lose its end
        return make_entry(whole, None, catalog, tolerance)
    title, year = _as_written(text)
    if catalog.readings(title, year, tolerance):
        return make_entry(title, year, catalog, tolerance)
    if entry := _credited(title, year, catalog, tolerance):
        return entry
    for reading in _readings(title, year, catalog, tolerance):
        if reading[0] and catalog.readings(*reading, tolerance):
            return make_entry(*reading, catalog, tolerance)
    for part in _parts(title, year):
        if part and catalog.readings(part, year, tolerance):
            return Entry(" ".join(title.split()), year, None, " ".join(part.split()))
    return make_entry(_without_remark(title, year), year, catalog, tolerance)


def make_entry(title: str, year: int | None, catalog: Catalog, tolerance: int = YEAR_TOLERANCE) -> Entry | None:
    """Return the entry of a title and year, with its catalog index; None for an empty title."""
    title = " ".join(title.split())
    return Entry(title, year, catalog.find(title, year, tolerance)) if title else None


def unmarked(line: str, catalog: Catalog) -> tuple[str, str]:
    """Return the line without its number or bullet, and which of the two it had: "number", "bullet" or ""."""
    text = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", " ".join(_TAG.sub(" ", line).split())))
    if catalog.index_of_line(text) is not None:  # "1. FC (2010)" is an item
        return text, ""
    plain = text.lstrip("*_ ")
    marks = text[: len(text) - len(plain)].strip()
    plain = plain.removesuffix(marks)  # **1. Title**; the emphasis of **1. Title may be closed elsewhere
    bullet, number = _BULLET.match(text), NUMBER.match(plain) or _LABEL.match(plain)
    known = catalog.readings(bare(text), None) or catalog.index_of_line(plain) is not None
    # not a title that begins like a number, as 3:10 to Yuma or V. by Thomas Pynchon
    if number and not known and not _BY.match(plain[number.end() :]):
        rest = plain[number.end() :].strip()
        label = _LABEL.match(rest)  # "1. Title: Heat", but not "1. No. 5" where "No. 5" is an item
        return (rest[label.end() :].strip() if label and catalog.index_of_line(rest) is None else rest), "number"
    if bullet:
        rest, inner = unmarked(text[bullet.end() :], catalog)
        return rest, inner or "bullet"
    return text, ""


def _without_marks(line: str) -> Iterator[str]:
    """Yield a line as it is, then with more and more of its list marks taken off; the same form twice is one."""
    text = last = " ".join(line.split())
    yield text
    for form in dict.fromkeys((text, _EMPHASIS.sub(r"\2", " ".join(_TAG.sub(" ", text).split())))):
        stripped = form.rstrip(",; ")
        bullet = _BULLET.match(stripped)
        plain = bare(stripped[bullet.end() :] if bullet else stripped)
        number = NUMBER.match(plain)
        for less in (form, plain, bare(plain[number.end() :]) if number else plain):
            if less != last:
                yield less
                last = less


def _closed_by_years(text: str) -> Iterator[tuple[str, int]]:
    """Yield what stands before the years in brackets, and the year; what follows the brackets is left out.

    Where two years follow each other, the second one closes the title: "Heat (1995) (2001)" is no "Heat (1995)". The
    same year twice is one.
    """
    begin, end, before = 0, -1, None
    for match in _CLOSING_YEAR.finditer(text):
        year = int(match.group(1))
        if end < 0 or text[end : match.start()].strip() or year != before:
            begin = match.start()
        end, before = match.end(), year
        title, rest = text[:begin].rstrip(), text[end:]
        if year not in YEARS or _CLOSING_YEAR.match(rest.lstrip()):
            continue
        while title and rest and _PAIRS.get(title[0]) == rest[0]:  # “Heat (1995)” - a classic
            title, rest = title[1:], rest[1:]
        if bare(title):
            yield bare(title), year


def _parse_strictly(line: str, catalog: Catalog, tolerance: int) -> Entry | None:
    """Return the item whose whole title stands on a line; else the title as written, without a catalog index."""
    written: tuple[str, int | None] = line, None
    for text in _without_marks(line):
        closed = list(_closed_by_years(text))
        for title, year in [(text, None), *closed]:
            index = catalog.find(natural(title), year, tolerance)
            if index is not None:
                return Entry(title, year, index)
        written = closed[0] if closed else (text, None)
    return None if _is_blank(written[0]) else Entry(*written, None)


def parse_line(
    line: str, catalog: Catalog, tolerance: int = YEAR_TOLERANCE, reading: Literal["strict", "lenient"] = "strict"
) -> Entry | None:
    """Return what one line names, or None for a line that names nothing: blank, signs alone, a number without title.

    `strict`: list marks (number, bullet, emphasis, quotes) and what follows the closing year are taken off; the rest is
    an item if it is its whole title or alias (case and spacing aside) and the year fits. `lenient`: subtitles, prefixes
    and remarks are also taken off where the catalog then knows the rest.
    """
    known = catalog.entry_of_line(line.strip())
    if known is not None:
        return known
    if len(line) > MAX_LINE:
        title = " ".join(line[:MAX_TITLE].split())
        return Entry(title, None, None) if title else None
    line = normalise_text(line)
    if reading == "strict":
        return _parse_strictly(line, catalog, tolerance)
    text = bare(unmarked(line, catalog)[0].rstrip(",; "))
    known = catalog.entry_of_line(text)
    return known if known is not None or _is_blank(text) else read_title(text, catalog, tolerance)


def parse_list(text: str, catalog: Catalog) -> list[Entry | None]:
    """Return one entry for each line of the text, in place; None for a line that names nothing (see `parse_line`).

    Line j (from 0) of the text is rank j, as in `rl.segmentation`. A final newline opens no rank.
    """
    lines = text.split("\n")
    if not lines[-1].strip():
        lines.pop()
    return [parse_line(line, catalog) for line in lines]


class WrittenList(NamedTuple):
    """A list as it was read strictly; `exact` tells whether each line is a catalog line to the letter.

    `items`: the catalog index of each line's item, None where it names none; `years`: by rank, the written years of
    items whose lines are not to the letter; `others`: the folded title and the written year ("" without) of what the
    other lines name, blank ones aside.
    """

    items: list[int | None]
    years: dict[int, int | None]
    others: list[tuple[str, str]]
    exact: bool


def read_list(text: str, catalog: Catalog, tolerance: int = YEAR_TOLERANCE) -> WrittenList:
    """Return what the lines of a text name, read strictly, for rewards and scores. A final newline opens no line."""
    lines = text.removesuffix("\n").split("\n")
    items = catalog.indices_of_lines(lines)
    years: dict[int, int | None] = {}
    others: list[tuple[str, str]] = []
    exact, names = None not in items, catalog.folded_names
    for rank, line in enumerate(lines):
        if items[rank] is not None:
            continue
        if _PLAIN(line) and "  " not in line and len(line) <= MAX_LINE:
            folded = line.lower()
            if folded not in names and (title := folded[:-7]) not in names:
                others.append((title, folded[-5:-1]))
                continue
        if entry := parse_line(line, catalog, tolerance):
            if entry.index is None:
                others.append((fold(entry.title), "" if entry.year is None else str(entry.year)))
            else:
                items[rank], years[rank] = entry.index, entry.year
    return WrittenList(items, years, others, exact)


def format_list(lines: list[str]) -> str:
    """Return the list format of the method: one `Title (Year)` a line, newline-separated."""
    return "\n".join(lines)
