"""The opening of a line: a prefix that it shares with every title that the strict reading can find in it.

Looking up the opening costs a fraction of parsing the line. Most lines that name no item
need nothing else.
"""

import re
import string
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from convrec.data.titles import YEARS, fold, normalise_unicode

_LOWER = {ord(char): ord(char.lower()) for char in string.ascii_letters + string.digits + "\n<"}
_KEPT = _LOWER | dict.fromkeys(b"()[", ord("("))
_TABLE = bytes(_KEPT.get(code, 0) for code in range(256))
_DROPPED = bytes(code for code in range(256) if code not in _KEPT)
_NUMBERS = string.digits.encode() + b"ivx"
UNSURE = frozenset([b"", *(letter.encode() for letter in string.ascii_lowercase)])  # "(500) Days of Summer", "a) Heat"
_PLAIN_LINE = re.compile(r"([A-Za-z0-9][^(\[*_`<]*) \((\d{4})\)", re.ASCII)


class Opened(NamedTuple):
    """The only title of an opening, folded; where its item has a plain line, that line and the item's index."""

    title: str
    line: str
    item: int | None


def openings(lines: Sequence[str]) -> list[bytes]:
    """Return the opening of each line: its ASCII letters and digits up to the first bracket, without a number in front.

    Every whole title that `parsing` can read in a line has the same opening, unless that of the line is in `UNSURE`:
    what the parser takes off are signs, numbers, and what follows a bracket. `lines` hold no newline.
    """
    text = "\n".join(lines)
    if not text.isascii():
        text = normalise_unicode("NFKD", text).casefold()
    letters = text.encode("ascii", "ignore").translate(_TABLE, _DROPPED)
    found = [line.partition(b"(")[0].lstrip(_NUMBERS) for line in letters.split(b"\n")]
    if b"<" in letters:  # the parser also takes tags off, which are letters
        return [b"" if b"<" in opening else opening for opening in found]
    return found


def opened(titles: Collection[str], lines: Mapping[str, int]) -> dict[bytes, Opened | None]:
    """Return the title of each opening, None where several have it or where it is unsure.

    `titles` are folded titles and aliases; `lines` maps those of items to their index.
    """
    plain: dict[str, tuple[str, int | None]] = {}  # by folded title
    for line, index in lines.items():
        match = _PLAIN_LINE.fullmatch(line)
        if match and int(match.group(2)) in YEARS and line == " ".join(line.split()):
            title = fold(match.group(1))
            plain[title] = ("", None) if title in plain else (line, index)
    found: dict[bytes, Opened | None] = dict.fromkeys(UNSURE)
    for title, opening in zip(titles, openings(list(titles)), strict=True):
        found[opening] = None if opening in found else Opened(title, *plain.get(title, ("", None)))
    return found
