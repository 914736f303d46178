"""The one parser of recommendation lists, for model output and for teacher output."""

import re
from dataclasses import dataclass

from convrec.data.catalog import Catalog

_MARKER = re.compile(r"^\s*(?:[-*•–]\s+|#?\d{1,3}\s*[.):]\s+)+")  # bullets and numbering
_YEAR = re.compile(r"[(\[]\s*(\d{4})\s*[)\]]")
_QUOTES = "\"'“”‘’«»*_` \t"
_COMMENT = re.compile(r"\s+[-–—:]\s+.*$")  # " - because it is great"


@dataclass(frozen=True)
class Entry:
    """One line of a list: the title and year as written; `index` is its catalog index, if it has one."""

    title: str
    year: int | None
    index: int | None


def parse_line(line: str, catalog: Catalog) -> Entry | None:
    """Return what one line names, or None for a line that names nothing (blank)."""
    index = catalog.index_of_line(line)
    if index is not None:  # the clean case costs one look-up
        item = catalog.items[index]
        return Entry(item.title, item.year, index)
    text = _MARKER.sub("", line).strip()
    match = _YEAR.search(text)
    if match and match.start() > 0:
        title, year = text[: match.start()], int(match.group(1))
    else:
        title, year = text, None
        if catalog.find(title.strip(_QUOTES), None) is None:
            title = _COMMENT.sub("", title)
    title = " ".join(title.strip(_QUOTES).split())
    return Entry(title, year, catalog.find(title, year)) if title else None


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
