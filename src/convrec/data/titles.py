"""Titles and years of items: how they are written, compared, and made into an id."""

import html
import math
import re
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, wraps
from html.entities import html5
from numbers import Number
from typing import Literal

import regex

from convrec.project.text import is_clean

LONGEST_TITLE = 1000  # characters of a title; a longer one is not used
# What files write, in any case, where an id, a year, another title or a metadata value is missing.
MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none", "\\n", "-", "?", "unknown"}
NOBODY = MISSING | {"anonymous", "anon", "guest", "undefined"}  # what clients send, too, where nobody is known
YEARS = range(1000, 2101)  # the years that an item can have
WRITTEN_YEARS = range(1870, 2101)  # the numbers of four digits in free text that are read as a year

_LONGEST_KEPT = 200  # characters
_LONG_RUN = regex.compile(r"(\p{M}{30})\p{M}+")
_SARA_AM = (("\u0e4d", "([\u0e48-\u0e4b]?)\u0e32", "\\1\u0e33"), ("\u0ecd", "([\u0ec8-\u0ecb]?)\u0eb2", "\\1\u0eb3"))


def normalise_unicode(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
    """Return the text in a Unicode normalisation form, in time linear in its length; NFC also composes SARA AM.

    Unicode divides this vowel of Thai and Lao in compatible forms, as some keyboards do, and never composes it; a tone
    mark can stand between its two parts.
    `unicodedata` sorts each run of combining marks in quadratic time. Unicode's stream-safe text has at most 30 marks
    in a row (UAX 15); in a text that is too long for a title, the marks of longer runs are left out.
    """
    if text.isascii():
        return text
    text = unicodedata.normalize(form, text if len(text) <= LONGEST_TITLE else _LONG_RUN.sub(r"\1", text))
    for mark, rest, composed in _SARA_AM if form == "NFC" else ():
        if mark in text:
            text = re.sub(mark + rest, composed, text)
    return text


# Marks of direction, zero-width spaces, byte order marks, soft hyphens, controls; Polars reads this class, too. Joiners
# are none of them: they spell words of Persian and Hindi, and emoji.
INVISIBLE = (
    "[\x01-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]"
)
_INVISIBLE = re.compile(INVISIBLE)
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")
_SPACE = re.compile(r"[^\S \t\n]")
_ENTITY = re.compile(r"&(?:amp;|#38;|#x26;)*(#x?[0-9a-f]{1,8};|\w{2,31};)?", re.IGNORECASE | re.ASCII)


def normalise_text(text: str) -> str:
    """Return a text of a person or a file in the form in which it is stored, compared and given to models.

    HTML entities are the characters that they stand for, also where they were escaped twice; lines end at `\\n`; other
    white space than tabs is a space; nothing is invisible (`INVISIBLE`); Unicode is composed (NFC).
    """
    if text.isascii() and text.isprintable() and "&" not in text:
        return text
    text = _LINE_END.sub("\n", _ENTITY.sub(_character, text))
    return normalise_unicode("NFC", _INVISIBLE.sub("", _SPACE.sub(" ", text)))


def _character(entity: re.Match[str]) -> str:
    name = entity[1] or ""
    return html.unescape(f"&{name}") if name.startswith("#") else html5.get(name, f"&{name}")


def _cached(function: Callable[[str], str]) -> Callable[[str], str]:
    """Keep results, because the same few titles come again and again; longer texts would fill the memory."""
    cached = lru_cache(maxsize=100_000)(function)
    return wraps(function)(lambda text: cached(text) if len(text) <= _LONGEST_KEPT else function(text))


def fold(title: str) -> str:
    """Return the title in composed Unicode, whitespace folded, case removed: the form in which titles are compared."""
    return " ".join(normalise_unicode("NFC", title).split()).casefold()


_ARTICLES = "The|An?|L[eao]s?|El|Il|Gli|L['’]|Os|Une?|Una|Der|Die|Das|Eine?|De[nt]?|Het|Een"
_ARTICLE_BEHIND = re.compile(rf"(.+?), ({_ARTICLES})(?=\s*\(|$)")
_ANY_ARTICLE_BEHIND = re.compile(_ARTICLE_BEHIND.pattern, re.IGNORECASE)
_ARTICLE_FIRST = re.compile(r"^(?:the|an?) (?=\S)")
_ROMAN = {"ii": "2", "iii": "3", "iv": "4", "vi": "6", "vii": "7", "viii": "8", "ix": "9"}  # not those that are words
_UNITS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"]
_ALIKE = {
    **_ROMAN,
    **{word: str(number) for number, word in enumerate(_UNITS, start=1)},
    **{"vol": "volume", "pt": "part", "vs": "versus", "v": "versus"},
}
_SUPERSCRIPT = re.compile(r"(?=[¹²³⁴-⁹])")
_HYPHEN = re.compile(r"(?<=\w)[-‐‑·](?=\w)")
LETTER = r"[\p{L}\p{M}\p{N}]"  # of a word: marks are part of it, as the vowel signs of Hindi are
_WORD = regex.compile(rf"{LETTER}+(?:[+#]++(?!{LETTER}))?")  # C++ and C# are words
_ACCENTS = regex.compile(r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+")


def without_accents(text: str) -> str:
    """Return the text in compatible Unicode (NFKC), Latin and Greek letters without accents.

    The marks of other scripts stay, for they make other letters: of ガ and カ, of दा and दि.
    """
    return normalise_unicode("NFC", _ACCENTS.sub("", normalise_unicode("NFKD", text)))


def natural(title: str, behind: re.Pattern[str] = _ARTICLE_BEHIND) -> str:
    """Return the title with an article that stands behind it, or behind its part before a bracket, in its place.

    `Postman, The (Postino, Il)` is `The Postman (Postino, Il)`, and `Avventura, L'` is `L'Avventura`.
    """
    while match := ", " in title and behind.match(title):
        name, article = match.groups()
        title = article + ("" if article[-1] in "'’" else " ") + name + title[match.end() :]
    return title


@_cached
def normalise(title: str) -> str:
    """Return the title's words, in the form in which spellings of one title agree; the folded title if it has none.

    Without case, accents and punctuation, an article that comes last in its place (see `natural`); `&` is "and", Roman
    numerals and number words are digits, a few abbreviations are written out. Items of several titles can share it.
    """
    folded = natural(fold(title), _ANY_ARTICLE_BEHIND) if len(title) <= LONGEST_TITLE else fold(title)
    text = without_accents(_SUPERSCRIPT.sub(" ", folded).replace("&", " and "))
    text = " ".join("".join(c for c in text if c not in "'’‘`´").split()).casefold()
    words = _WORD.findall(text)
    if len(words) > 1:  # a title of one word, as Nine, keeps it: 9 is another film
        last = "5" if words[-1] == "v" else _ALIKE.get(words[-1], words[-1])  # Rocky V
        words = [*(_ALIKE.get(word, word) for word in words[:-1]), last]
    return " ".join(words) or fold(title)


def without_article(normalised: str) -> str:
    """Return a normalised title without its leading article."""
    return _ARTICLE_FIRST.sub("", normalised)


def spellings(title: str) -> set[str]:
    """Return the forms under which a title is looked up where its year is near or unknown.

    Hyphens divide words, or do not; in a title of three words or more a leading article does not matter either.
    """
    forms = {normalise(title), normalise(_HYPHEN.sub("", title))}
    return forms | {bare for form in forms if len((bare := without_article(form)).split()) > 2}


def loose(title: str) -> str:
    """Return the form under which a title is looked up where the year is the very same: no article, no spaces."""
    return without_article(normalise(title)).replace(" ", "")


def line(title: str, year: int | None) -> str:
    """Return an item as one line of a list: `Title (Year)`, or the title alone where it has no year."""
    return title if year is None else f"{title} ({year})"


# A year, or a range such as 2008–2013 or 2016-present: its first year counts.
WRITTEN_YEAR = r"(\d{4})(?:\s?[-–—/]\s?(?:\d{0,4}|(?i:present|now|today|ongoing)))?"
_MEDIA = r"(?:(?:TV |Web |Video )?(?:Mini[ -]?)?(?:Series|Movie|Film|Special|Short|Episode|Game)|TV|VG?|Video)"
_YEAR = re.compile(rf" ?\((?:{_MEDIA} )?{WRITTEN_YEAR}(?: {_MEDIA})?\)(?: ?[(\[]{_MEDIA}[)\]])?$", re.IGNORECASE)
_RANGE = re.compile(WRITTEN_YEAR)
_LARGEST_TITLE = 10**15  # a number beyond is no title: 300 and 2012 are


def title_and_year(name: str) -> tuple[str, str]:
    """Return the two parts of `Title (Year)`, the year empty where the name has none; of a range the first year.

    A media tag beside the year is no part of the title: `(TV Series 2016– )`, `(2017 film)`, `(1980)(TV)`.
    """
    text = " ".join(name.split())
    match = _YEAR.search(text)
    return (text[: match.start()], match.group(1)) if match else (text, "")


_ESCAPES = str.maketrans({" ": "-", "-": "%2d", "_": "%5f", "%": "%25"})


def item_id(title: str, year: int | None) -> str:
    """Return the id of an item that its catalog gives none: folded title and year, as `the-matrix_1999` or `chess`.

    A space is `-`; the title's own `-`, `_` and `%` are percent-encoded, as in `wall%2de_2008`. So titles that differ
    after folding, or years that differ, have different ids, whatever else the catalog holds.
    """
    words = fold(title).translate(_ESCAPES)
    return words if year is None else f"{words}_{year}"


# Columns of the ids of items, as MovieLens, the Amazon reviews and others name them.
ITEM_IDS = ("movieId", "movie_id", "itemId", "item_id", "id", "parent_asin", "asin", "product_id")
EXACT = 2**53  # from here on, floats of 64 bits stand for several integers
AS_TEXT = "write ids as integers or text"


def usable_id(value: object, field: str) -> str:
    """Return an id, a text or a number, as text without `INVISIBLE`; "" where it is missing (see `MISSING`).

    Raises `ValueError` for anything else.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
        if isinstance(value, float) and abs(value) >= EXACT:
            raise ValueError(f"{field} is a decimal number that stands for several integers; {AS_TEXT}")
        value = int(value)  # what is left of a column of integers that had gaps
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"{field} is neither text nor an integer")
    if not is_clean(str(value)):
        raise ValueError("NUL or half a character")
    text = _INVISIBLE.sub("", str(value)).strip()
    return "" if text.casefold() in MISSING else text


def usable_user(value: object) -> str:
    """Return the id of a person as `usable_id` does, "" also where it is that of nobody (see `NOBODY`)."""
    own_id = usable_id(value, "user_id")
    return "" if own_id.casefold() in NOBODY else own_id


def year_gap(one: int | None, other: int | None) -> int:
    """Return by how many years two years differ: a missing year agrees with any."""
    return 0 if one is None or other is None else abs(one - other)


def usable_title(title: object, year: object) -> tuple[str, int | None]:
    """Return title and year as an item has them: normalised text, whitespace folded; a number as year, or None.

    This is how the titles and years of catalogs, logs and conversations are read. An article behind the title comes
    first (see `natural`), a title that ends in a year in brackets has that year, of a range of years the first one
    counts, and `NA`, `NULL`, `\\N` and the like are no year. Raises `ValueError` saying what is wrong with the two.
    """
    if title is None or title != title:
        raise ValueError("no title")
    is_text = isinstance(title, str) or (isinstance(title, (int, float)) and abs(title) <= _LARGEST_TITLE)
    if isinstance(title, bool) or not is_text:
        raise ValueError("title is no text")
    text = str(title)
    if len(text) > LONGEST_TITLE:
        raise ValueError(f"a title of more than {LONGEST_TITLE:,} characters")
    text = natural(" ".join(normalise_text(text).split()))
    if not text:
        raise ValueError("no title")
    if not is_clean(text):
        raise ValueError("NUL or half a character")
    number, (bare, own_year) = _usable_year(year), title_and_year(text)
    while bare and own_year and number in (None, int(own_year)):  # "Up (2009) (2009)", too, is Up of 2009
        text, number = bare, _usable_year(own_year)
        bare, own_year = title_and_year(text)
    return text, number


def _usable_year(year: object) -> int | None:
    if year is None or year != year:
        return None
    if not isinstance(year, (str, Number)):
        raise ValueError("year is no number")
    try:
        text = str(year).strip()
        if text.casefold() in MISSING:
            return None
        value = float(match[1] if (match := _RANGE.fullmatch(text)) else text)  # "1995.0" is left of columns with gaps
    except ValueError:
        raise ValueError("year is no number") from None
    if not value.is_integer() or int(value) not in YEARS:  # a float would be compared with each year of the range
        raise ValueError(f"year is not from {YEARS[0]} to {YEARS[-1]}")
    return int(value)
