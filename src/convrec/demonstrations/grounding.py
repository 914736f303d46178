"""Grounding: matches a written title to catalog items exactly, by spelling variant, fuzzily, or by a part of it."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from rapidfuzz import fuzz, process
from rapidfuzz.distance import OSA

from convrec.data.catalog import Catalog
from convrec.data.parsing import Entry
from convrec.data.titles import fold, normalise, without_article

Kind = Literal["exact", "normalised", "fuzzy", "truncated"]
KINDS: tuple[Kind, ...] = ("exact", "normalised", "fuzzy", "truncated")
MIN_RATIO = 85.0  # of a fuzzy match with a matching year, 0 to 100
MIN_RATIO_WITHOUT_YEAR = 97.0  # near identity, where one of the two has no year
_BLOCK = 512  # titles compared with the catalog at once: 512 x 7,404 ratios are 15 MB
_DIGITS = re.compile(r"\d+")
_SUBTITLE = re.compile(r"\s*(?::|,|[-–—~|]+(?=\s))")
_SEQUEL = re.compile(
    r"[\W_]*(?:(?:the )?(?:part|chapter|volume|vol|episode|season|book)\b|[ivx]+\b|\d{1,2}\b|#)|\s*(?::|[-–—]\s)"
)
_MIN_LETTERS, _LETTERS_PER_ERROR = 8, 12
_YEAR_GAP = 1  # years between a title with a typing error and its item
_MIN_LETTERS_OF_WORD = 4  # of a word with a typing error


class Match(NamedTuple):
    """The items that a title names, all equally likely (several where a title without a year is ambiguous)."""

    kind: Kind
    indices: tuple[int, ...]


class Grounder:
    """Matches titles with a catalog: exact, normalised, fuzzy, then truncated; a year must fit.

    A fuzzy match has at least a rapidfuzz ratio of `MIN_RATIO` where the years differ by at most 1, and of
    `MIN_RATIO_WITHOUT_YEAR` where the title or the item has none. It allows one typing error, and one more for every 12
    letters, in titles of at least 8 letters ("Taken" is no "Take"). The error is neither a word's first letter
    ("Singer" is no "Ringer") nor its last s, and numbers have none: sequels are other films. A word with an error is
    one that no title of the catalog has ("Revolution" is no "Resolution"), unless the year is the very same and the
    title has other words.

    A truncated match is one of a part of the title. A title without its subtitle must have the item's very year. There
    is none where the numbers differ, or where other titles of the catalog go on from that part: it is a series.
    """

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._titles = [normalise(item.title) for item in catalog.items]
        self._words = {word for title in self._titles for word in title.split()}
        self._folded = sorted({fold(title) for item in catalog.items for title in (item.title, *item.aliases)})
        self._years = np.array([np.nan if item.year is None else item.year for item in catalog.items])

    def match(self, entries: Sequence[Entry]) -> list[Match | None]:
        """Return the match of each entry, or None if no catalog title is similar enough."""
        found = [self._by_spelling(entry) for entry in entries]
        open_rows = [row for row, match in enumerate(found) if match is None]
        for start in range(0, len(open_rows), _BLOCK):
            rows = open_rows[start : start + _BLOCK]
            titles = [normalise(entries[row].title) for row in rows]
            ratios = process.cdist(
                titles, self._titles, scorer=fuzz.ratio, score_cutoff=MIN_RATIO, dtype=np.float32, workers=-1
            )
            for row, title, values in zip(rows, titles, ratios, strict=True):
                found[row] = self._by_ratio(title, entries[row].year, values)
        return [match or self._by_part(entry) for match, entry in zip(found, entries, strict=True)]

    def _by_spelling(self, entry: Entry) -> Match | None:
        exact: tuple[int, ...] = () if entry.index is None else (entry.index,)
        if not exact and entry.year is None:
            exact = tuple(self._catalog.indices_of_title(entry.title))
        if exact:
            return Match("exact", exact)
        readings = tuple(self._catalog.readings(entry.title, entry.year))
        return Match("normalised", readings) if readings else None

    def _by_ratio(self, title: str, year: int | None, ratios: np.ndarray) -> Match | None:
        """Return the match with the highest ratio; None if different titles have the same ratio."""
        gaps = np.abs(self._years - (np.nan if year is None else year))
        alike = np.where(np.isnan(gaps), ratios >= MIN_RATIO_WITHOUT_YEAR, (ratios >= MIN_RATIO) & (gaps <= _YEAR_GAP))
        numbers = _DIGITS.findall(title)
        candidates = [
            i
            for i in np.flatnonzero(alike).tolist()
            if _DIGITS.findall(self._titles[i]) == numbers
            and self._is_typing_error(title, self._titles[i], bool(gaps[i] == 0))
        ]
        if not candidates:
            return None
        best = max(ratios[candidates])
        top = [i for i in candidates if ratios[i] == best]
        if len({self._catalog.folded_titles[i] for i in top}) > 1:
            return None
        if year is not None:
            top = sorted(top, key=lambda i: (np.isnan(self._years[i]), abs(self._years[i] - year)))[:1]
        return Match("fuzzy", tuple(top))

    def _by_part(self, entry: Entry) -> Match | None:
        numbers_differ = _DIGITS.findall(normalise(entry.part)) != _DIGITS.findall(normalise(entry.title))
        if not entry.part or numbers_differ or self._is_series(entry.part):
            return None
        named = tuple(self._catalog.readings(entry.part, entry.year))
        if entry.title.startswith(entry.part) and _SUBTITLE.match(entry.title, len(entry.part)):
            named = tuple(i for i in named if self._catalog.items[i].year == entry.year)
        return Match("truncated", named) if named else None

    def _is_series(self, title: str) -> bool:
        """Return whether catalog titles continue this one, as Toy Story 2 continues Toy Story."""
        head = fold(title)
        for longer in self._folded[bisect_right(self._folded, head) :]:
            if not longer.startswith(head):
                return False
            if _SEQUEL.match(longer[len(head) :]):
                return True
        return False

    def _is_typing_error(self, title: str, other: str, same_year: bool) -> bool:
        """Return whether normalised titles differ by so few letters (or swaps) that the first is a typing error."""
        one, two = (without_article(text).split() for text in (title, other))
        if len(one) != len(two):  # a space too many, or too few
            one, two = ["".join(one)], ["".join(two)]
        letters = min(sum(map(len, one)), sum(map(len, two)))
        wrong = [(a, b) for a, b in zip(one, two, strict=True) if a != b]
        known: set[str] = set() if same_year and len(one) > 1 else self._words
        return (
            letters >= _MIN_LETTERS
            and len(wrong) <= 1 + letters // _LETTERS_PER_ERROR
            and all(a not in known and a[0] == b[0] and a.removesuffix("s") != b.removesuffix("s") for a, b in wrong)
            and all(max(len(a), len(b)) >= _MIN_LETTERS_OF_WORD for a, b in wrong)
            and all(OSA.distance(a, b, score_cutoff=1) <= 1 for a, b in wrong)
        )
