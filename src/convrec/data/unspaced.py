"""Scripts without spaces between words: Chinese, Japanese, Thai, Lao, Khmer, Burmese. What stands for words in them."""

import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

import regex

from convrec.data.titles import normalise_unicode

# Letters, marks and digits of these scripts. Script_Extensions (scx) also has the Japanese length mark, `ー`.
_SCRIPTS = "".join(rf"\p{{scx={name}}}" for name in ("Hani", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr"))
_RUN = regex.compile(rf"(?V1)[[{_SCRIPTS}]&&[\p{{L}}\p{{M}}\p{{N}}]]+")
_HAN, _KATAKANA, _MARK = (regex.compile(rf"\p{{{name}}}") for name in ("Han", "scx=Kana", "M"))
_KEY = 2  # first characters by which the lengths of titles are looked up
_RUNNING_WEIGHT = 6  # of a title that is found in running text: a Han character weighs 2, any other letter 1
_SIZES = (2, 3)  # characters of the n-grams
# A word, for Polars: each character of these scripts is one. Its `\w` has marks, too.
WORD = rf"[{_SCRIPTS}&&\w]\p{{M}}*|[\w--[{_SCRIPTS}]]+"


def without_runs(text: str) -> str:
    """Return the text with a space for each character of these scripts, so that places in it stay."""
    return text if text.isascii() else _RUN.sub(lambda run: " " * len(run.group()), text)


def ngrams(text: str) -> list[str]:
    """Return the n-grams of 2 and 3 characters of each run of these scripts; a run of one character is its own."""
    return [
        run[at : at + size]
        for run in ([] if text.isascii() else _RUN.findall(text))
        for size in (_SIZES if len(run) > 1 else (1,))
        for at in range(len(run) - size + 1)
    ]


def num_words(text: str) -> int:
    """Return the number of words between spaces; each character of these scripts is one."""
    runs = [] if text.isascii() else _RUN.findall(text)
    return len(without_runs(text).split()) + sum(map(len, runs))


class Place(NamedTuple):
    """Where a title stands in a text; `is_word` tells whether it is more than a part of other words."""

    start: int
    end: int
    title: str
    is_word: bool


class UnspacedTitles:
    """Finds the titles that hold letters of these scripts in free text: the longest first, without case and width.

    What is a word is unknown there, so a title is one where it stands between signs or spaces (two characters or more),
    or is long: three Han characters, or as many letters as weigh the same, at two to a Han character. It is never cut
    out of a longer word of katakana, of spaced letters or of digits.
    """

    def __init__(self, titles: Iterable[str]):
        self._titles: dict[str, str] = {}  # by their flat text
        self._sizes: dict[str, set[int]] = {}  # of the flat texts, by their first characters
        for title in titles:
            if _RUN.search(title):
                flat = _flat(normalise_unicode("NFC", title))
                self._titles.setdefault(flat, title)
                self._sizes.setdefault(flat[:_KEY], set()).add(len(flat))

    def places(self, text: str) -> list[Place]:
        """Return where titles stand in a text of composed Unicode (NFC), in order and without overlaps."""
        if not self._titles or not _RUN.search(text):
            return []
        flat, places, at = _flat(text), list[Place](), 0
        while at < len(flat):
            if place := self._place(flat, at):
                places.append(place)
            at = place.end if place else at + 1
        return places

    def _place(self, flat: str, at: int) -> Place | None:
        key = flat[at : at + _KEY]
        for size in sorted(self._sizes.get(key, set()) | self._sizes.get(key[:1], set()), reverse=True):
            folded = flat[at : at + size]
            title, end = self._titles.get(folded), at + len(folded)
            if title is not None and not (_is_cut(flat, at, at - 1) or _is_cut(flat, end - 1, end)):
                is_alone = not (_is_letter(flat, at - 1) or _is_letter(flat, end))
                return Place(at, end, title, _weight(folded) >= _RUNNING_WEIGHT or (is_alone and len(folded) > 1))
        return None


def _flat(text: str) -> str:
    """Return a text of the same length, without case and width (`Ａ` is `a`)."""
    folded = (unicodedata.normalize("NFKC", letter).casefold() for letter in text)
    return "".join(new if len(new) == 1 else old for new, old in zip(folded, text, strict=True))


def _weight(title: str) -> int:
    return sum(1 + bool(_HAN.match(letter)) for letter in title if letter.isalnum() or _MARK.match(letter))


def _is_letter(text: str, at: int) -> bool:
    return 0 <= at < len(text) and (text[at].isalnum() or bool(_MARK.match(text[at])))


def _is_cut(text: str, inside: int, outside: int) -> bool:
    """Tell whether a word goes on beyond the border of a title, between the characters at two places."""
    if not _is_letter(text, outside):
        return False
    one, other = text[inside], text[outside]
    if _MARK.match(text[max(inside, outside)]):  # a mark belongs to the letter before it
        return True
    if _KATAKANA.match(one) or _KATAKANA.match(other):
        return bool(_KATAKANA.match(one) and _KATAKANA.match(other))
    return not (_RUN.match(one) or _RUN.match(other))
