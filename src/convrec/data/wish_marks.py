"""Splits a user's words into tokens: words, signs, cues of `wish_words.yaml`, and what the catalog knows."""

import datetime
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import regex

from convrec.data.catalog import Catalog, short_values
from convrec.data.mentions import Mentions
from convrec.data.titles import WRITTEN_YEARS, fold, normalise_unicode, without_accents
from convrec.project.yaml import read_yaml

Key = tuple[str, ...]
MARKS = {"value", "title", "limit", "third"}
_SHORT = 0.9  # share of the items with short values, from which a column is one of values and not of prose
PEOPLE = {"actor", "artist", "author", "cast", "creator", "director", "people", "star", "writer"}
PLACES = {"country", "language", "origin"}
MINUTES = {"runtime", "duration", "length", "minute", "playtime", "playing_time", "running_time"}
_COUNTS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
_DIGITS = {word: str(n) for n, word in enumerate([*_COUNTS, "eleven", "twelve"]) if n > 1}
NUMBERS = {word: n for n, word in enumerate(_COUNTS)} | {"a": 1, "an": 1, "few": 3, "couple": 2, "hour": 1}
_DECADES = ["twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties", "nineties"]
_PARTS = {"early": (0, 3), "mid": (4, 6), "late": (7, 9)}  # of a decade
FOREVER = 2100
_ENDINGS = {"m": "am", "re": "are", "ve": "have", "ll": "will", "d": "would"}
_LEAST_SURNAME = 5  # letters of one that is read in small letters
_WORD = r"[^\W_]+(?:'[^\W_]+)*"
_FIRST, _NAME = 0xE000, "\uf8ff"  # private characters that stand for titles, and for a name that the catalog lacks
_BREAK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*•–]|\d+[.)])\s)")
_NOISE = regex.compile(r"[\p{So}\p{Sk}\p{Cs}\p{Cn}\u200d\ufe0f\u20e3*_~`^|<>#\"]+|\(\d{4}\)|(?<!\w)'|'(?!\w)")
_TITLE_WORDS = r"(?:[A-Z\d][\w'-]*|of|the|and|a|an|in|to|for|but|with|&)"
_NAMES = re.compile(  # titles that the catalog lacks
    r"(?<=[\w,:] )(?:No|Not|Without|Nothing|Anything|Everything|Never|Enough|Only|Except|Free|Tired|Hate|Avoid|Skip)"
    rf"(?: {_TITLE_WORDS})* [A-Z][\w'-]*|\"{_TITLE_WORDS}(?:[ :,]+{_TITLE_WORDS})+\""
)
_REWRITTEN = [  # contractions, and what stands for a limit or for two values
    (re.compile(pattern), other)
    for pattern, other in (
        (r"\b(?:lol|lmao|haha(?:ha)*|thx|xd)\b", ""),
        (r"\bcan't\b|\bcannot\b", "can not"),
        (r"\bwon't\b", "will not"),
        (r"\bain't\b", "is not"),
        (r"n't\b", " not"),
        *((rf"'{ending}\b", f" {word}") for ending, word in _ENDINGS.items()),
        (r"\b(it|that|there|he|she|who|what)'s\b", r"\1 is"),
        (r"(?<=[a-z])'s\b", ""),
        (r"\b(?:for|with) (?:an? |my |our |the |two )?[2-9][- ]y(?:ea)?rs?[- ]olds?\b(?! [a-z])", "only kids"),
        (r"\b(?:(?:for|with) )?(?:my|our) [2-9][- ]?(?:y/?o|y(?:ea)?rs?[- ]old)s?\b", "only kids"),
        (r"\bw/o\b", "without"),
        (r"\b(?:the )?(?:last|previous|20th|twentieth) century\b(?! fox| studios| women)", "1900 to 1999"),
        (r"\brom[- ]?coms?\b", "romance comedy"),
        (r"\b(?:this|21st|the current|twenty[- ]first) century\b", f"<y2000-{FOREVER}>"),
    )
]
_AGO = re.compile(
    r"\b(?:last|past|previous) (?:(\d{1,2}|couple|few|two|three|four|five|ten)(?: of)? (year|decade)s?|decade)\b"
    r"|\bthis decade\b"
)
_YEAR = re.compile(
    rf"(?:\b(early|mid|late)[- ])?(?<![\w.,])(?:(1[89]|20)?(\d)0'?s|({'|'.join(_DECADES)})|(\d{{4}}))\b(?!\.\d)"
)
_RANGE = re.compile(
    r"<y(\d+)-\d+>\s*(?:to|until|till|through|-|–)\s*(?:the )?<y\d+-(\d+)>"
    r"|\bbetween (?:the )?<y(\d+)-\d+> and (?:the )?<y\d+-(\d+)>"
)
_AMOUNT = re.compile(
    r"(?<![\w.,])(?:(?P<low>\d+) ?(?:-|–|to|and) ?)?"
    rf"(?P<number>\d{{1,3}}(?:,\d{{3}})+|\d+(?:\.\d+)?|(?:an?|{'|'.join(_COUNTS[1:])})(?=[\s-]))"
    r"(?P<half>(?: and)? a half)?"
    r"[\s-]?(?P<unit>[a-z]+?)(?:\b|(?=\d))(?P<later> and a half)?"
    r"(?:,? ?(?:and )?(?P<minutes>\d+) ?(?:m|min|mins|minutes)?\b)?"
)
_BETWEEN = r"(?:(?:the|year|years|about|around) )*"
ARTICLE = re.compile(r"^(?:The|An?) (?=\w)")
_TITLED = {
    "like",
    "liked",
    "seen",
    "watched",
    "except",
    "saw",
    "love",
    "loved",
    "enjoyed",
    "not",
    "hated",
    "finished",
} | {"than", "done", "after", "did", "rewatched", "vein of"}  # before a title in small letters
_BEFORE_NAMES = {"with", "by", "starring", "featuring"}  # before a first name alone
_TITLED_ON = {",", "and", "or", "the", "a", "&", "/"}  # between titles in small letters
_TOKEN = re.compile(rf"[\ue000-\uf8fe]|{_NAME}|<[yn][^>]*>|{_WORD}|[^\w\s]")


@cache
def words() -> dict[str, Any]:
    """Return the lists of `wish_words.yaml`: phrases as tuples of words, lines of forms as they are."""
    return {name: _phrases(value) for name, value in read_yaml(Path(__file__).with_name("wish_words.yaml")).items()}


def _phrases(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _phrases(own) for name, own in value.items()}
    parts = " ".join(value.split()).split("|")
    return {tuple(part.split()) for part in parts if part.strip()} if len(parts) > 1 else value


@cache
def single(*names: str) -> frozenset[str]:
    """Return the first words of the phrases of some lists."""
    return frozenset(phrase[0] for name in names for phrase in words()[name])


@cache
def nouns() -> frozenset[str]:
    """Return the words for an item of any catalog."""
    return frozenset(form for noun in single("noun") for form in (noun, f"{noun}s"))


@cache
def fillers() -> frozenset[str]:
    """Return the words that stand between a denial and what it denies."""
    return single("filler") | nouns()


@cache
def plain_words() -> frozenset[str]:
    """Return the words of a request that ask for nothing by themselves."""
    return single("plain", "degree") | fillers()


@cache
def foreign_words() -> frozenset[str]:
    """Return frequent words of other languages."""
    return single("foreign") - plain_words()


@cache
def _cue_table() -> dict[str, list[tuple[Key, str]]]:
    """Return the cues by their first word, the longest first; of two for the same phrase, the later list counts."""
    known = words()
    found = {phrase: f"behind.{name}" for name, own in known["behind"].items() for phrase in own}
    found |= {phrase: name for name, own in known["cues"].items() for phrase in own}
    found |= {phrase: f"third.{name}" for name, own in known["thirds"].items() for phrase in own}
    table: dict[str, list[tuple[Key, str]]] = {}
    for phrase, cue in sorted(found.items(), key=lambda pair: -len(pair[0])):
        table.setdefault(phrase[0], []).append((phrase, cue))
    return table


@cache
def _operators() -> list[tuple[re.Pattern[str], str]]:
    """Return patterns of a limit with the words that say how it compares, and what takes their place."""
    found = []
    for side in ("before", "after"):
        for name, phrases in words()[side].items():
            said = "|".join(sorted((re.escape(" ".join(phrase)) for phrase in phrases), key=len, reverse=True))
            pattern = (
                rf"\b(?:{said})[ -]+{_BETWEEN}<([^>|]*)>" if side == "before" else rf"<([^>|]*)>\s*(?:{said})(?!\w)"
            )
            found.append((re.compile(pattern), rf"<\1|{name}>"))
    return [*found, (re.compile(rf"\bfrom {_BETWEEN}<([^>|]*)> on\b"), r"<\1|least>")]


@dataclass(frozen=True, eq=False)
class Value:
    """A value of the catalog, or a title, with the indices of the items that have it."""

    text: str
    items: list[int]
    column: str = ""
    is_narrower: bool = False  # than the value that is meant


@dataclass(eq=False)
class Token:
    """A word, a sign, a cue, a name that the catalog lacks, or a mark: what the catalog knows.

    `said` is what the user wrote; `numbers` are the first and the last year, or the least and the largest amount.
    """

    word: str
    said: str
    kind: str = "word"  # word, sign, cue, name, or one of MARKS
    cue: str = ""
    values: list[Value] = field(default_factory=list)
    numbers: tuple[float, float] = (0, 0)
    unit: str = ""  # of a limit, year or that of an amount; of a third, short, long, new or old
    operator: str = ""  # below, most, above, least


class Marker:
    """Splits texts into tokens. Thread-safe."""

    def __init__(self, catalog: Catalog):
        self.catalog, self.mentions = catalog, Mentions(catalog)
        self._years = np.array([np.nan if item.year is None else item.year for item in catalog.items])
        self._columns: dict[str, np.ndarray] = {}  # of numbers. Shape: (C,)
        self.vocabulary = {word for item in catalog.items for word in words_of(item.text())}
        self.spelt: dict[Key, list[Value]] = {}
        self._surnames: dict[str, Key | None] = {}
        self._known_by_first: dict[str, Key | None] = {}  # people by the first name, where it is of one alone
        self._read_columns()
        others = [key for key, own in self.spelt.items() if any(stem(fold(one.column)) not in PEOPLE for one in own)]
        self._common = plain_words().union(*others, *(words_of(item.title) for item in catalog.items))
        self._add_words()
        self._titles: dict[Key, Value] = {}  # by their words, and by those before a colon
        for index, item in enumerate(catalog.items):
            for title in dict.fromkeys((item.title, item.title.partition(":")[0])):
                said = words_of(ARTICLE.sub("", title))
                for key in dict.fromkeys((said, tuple(_DIGITS.get(word, word) for word in said))):  # "Oceans 11"
                    self._titles.setdefault(key, Value(title, [])).items.append(index)
        self._starts = self._starts_of_titles()
        self._sizes: dict[str, list[int]] = {}  # of values and titles in words, by the first word
        for size, first in sorted(
            {(len(key), key[0]) for key in (*self.spelt, *self._titles, *self._starts) if key}, reverse=True
        ):
            self._sizes.setdefault(first, []).append(size)

    def _read_columns(self) -> None:
        own = [short_values(item) for item in self.catalog.items]
        for name in dict.fromkeys(name for item in self.catalog.items for name in item.metadata):
            texts = [item.metadata.get(name, "") for item in self.catalog.items]
            numbers = [re.fullmatch(r"(\d+(?:\.\d+)?)(?: ?m(?:in(?:utes)?)?)?", text.strip()) for text in texts]
            filled = sum(map(bool, texts))
            if filled and sum(map(bool, numbers)) >= _SHORT * filled:
                self._columns[fold(name)] = np.array([float(match[1]) if match else np.nan for match in numbers])
            elif filled and sum(name in values for values in own) >= _SHORT * filled:
                known: dict[str, Value] = {}
                for index, values in enumerate(own):
                    for text in values.get(name, ()):
                        known.setdefault(fold(text), Value(text, [], name)).items.append(index)
                home = max(known.values(), key=lambda value: len(value.items))
                if fold(name) in ("language", "languages") and len(home.items) < filled:
                    others = {item for value in known.values() for item in value.items} - set(home.items)
                    foreign = [Value("foreign", sorted(others), name)]
                    self.spelt |= {("foreign",): foreign, ("foreign", "language"): foreign}
                for value in known.values():
                    key = words_of(value.text)
                    self.spelt.setdefault(key, []).append(value)
                    if len(key) > 1 and stem(fold(name)) in PEOPLE:
                        first, last = (without_accents(value.text.split()[end]).casefold() for end in (0, -1))
                        self._surnames[last] = key if self._surnames.get(last, key) == key else None
                        self._known_by_first[first] = key if self._known_by_first.get(first, key) == key else None

    def _starts_of_titles(self) -> dict[Key, Value]:
        """Return items by the first two words of their title, or those behind its colon, where these mean no other."""
        said: dict[Key, list[int]] = {}
        for index, item in enumerate(self.catalog.items):
            _, _, behind = item.title.partition(":")
            start, end = words_of(ARTICLE.sub("", item.title))[:2], words_of(ARTICLE.sub("", behind.strip()))
            keys = {start} if plain_words().isdisjoint(start) else set()
            for key in keys | ({end} if not plain_words() >= set(end) else set()):
                if len(key) > 1 and key not in self._titles:
                    said.setdefault(key, []).append(index)
        return {key: Value(self.catalog.items[own[0]].title, own) for key, own in said.items() if len(own) == 1}

    def _add_words(self) -> None:
        for name in ("same", "narrower"):
            for line in words()[name].splitlines():
                forms = [words_of(form) for form in line.split()]
                found = list(dict.fromkeys(value for form in forms for value in self.spelt.get(form, ())))
                if name == "narrower":
                    found = [replace(own, is_narrower=True) for own in self.spelt.get(forms[0], ())]
                    forms = [form for form in forms[1:] if form not in self.spelt]
                for form in forms if found else ():
                    self.spelt[form] = list(dict.fromkeys([*self.spelt.get(form, ()), *found]))

    def column(self, unit: str) -> np.ndarray:
        """Return the numbers of a unit, such as `year`, `min` or `page`; NaN where there are none. Shape: (C,)."""
        if unit == "year":
            return self._years
        names = [name for name in self._columns if name in MINUTES or name.split("_")[0] in MINUTES]
        names = names if unit == "min" else [name for name in self._columns if stem(name) == unit]
        return self._columns[names[0]] if names else np.full(len(self.catalog), np.nan)

    def has(self, unit: str) -> bool:
        """Return whether an item has a number of a unit."""
        return not np.isnan(self.column(unit)).all()

    def tokens(self, text: str, shown: Collection[str] = ()) -> list[Token]:
        """Return the tokens of a text, in which titles that were shown may be in small letters.

        Line breaks count as spaces, except empty lines and those before a bullet.
        """
        text = re.sub(r"[\ue000-\uf8ff]", " ", normalise_unicode("NFC", text)).replace("’", "'").replace("‘", "'")
        text = re.sub("[“”„«»]", '"', re.sub(r"\s*\n\s*", " ", _BREAK.sub(" . ", text)))
        titles: list[Value] = []
        places = {(start, end): title for start, end, title in self.mentions.places(text)}
        places = {place: title for place, title in places.items() if not self._is_of_a_name(text, *place)}
        for (start, end), title in sorted(places.items(), reverse=True):
            text = f"{text[:start]} {chr(_FIRST + len(titles))} {text[end:]}"
            titles.append(Value(title, self.catalog.indices_of_title(title)))
        text = re.sub(r"#(?=\d)", "number ", text)
        text = re.sub(r"\.{2,}|…", " , ", _NOISE.sub(" ", _NAMES.sub(f" {_NAME} ", text)))
        capitals = {fold(word) for word in re.findall(r"(?<=[\w,] )[A-Z][\w'-]+", text)}
        text = "".join(low if len(low := without_accents(letter).casefold()) == 1 else letter for letter in text)
        for pattern, other in _REWRITTEN:
            text = pattern.sub(other, text)
        text = _YEAR.sub(_year_mark, _AGO.sub(_years_ago, _AMOUNT.sub(self._amount_mark, text)))
        text = re.sub(r"\s+", " ", text)
        text = _RANGE.sub(lambda own: f"<y{own[1] or own[3]}-{own[2] or own[4]}>", text)
        for pattern, other in _operators():
            text = pattern.sub(other, text)
        found = [token for word in _TOKEN.findall(text) for token in _split(word, titles)]
        return list(self._marked(found, capitals, shown))

    def _is_of_a_name(self, text: str, start: int, end: int) -> bool:
        """Return whether a title is part of a person's name, as *Akira* is of Akira Kurosawa."""
        before = re.findall(_WORD, text[max(0, start - 40) : start])[-1:]
        behind = re.findall(_WORD, text[end : end + 40])
        title = re.findall(_WORD, text[start:end])
        names = ([*title, *behind[:1]], [*title, *behind[:2]], [*before, *title])
        found = [self.spelt.get(words_of(" ".join(name)), []) for name in names if len(name) > len(title)]
        return any(stem(fold(value.column)) in PEOPLE for own in found for value in own)

    def _marked(self, found: list[Token], capitals: set[str], shown: Collection[str]) -> Iterator[Token]:
        """Yield the tokens with values, titles in small letters, surnames and cues in place of their words."""
        said = [token.word for token in found]
        stems = [stem(token.word) if token.kind == "word" else "" for token in found]
        at, is_titled = 0, False  # a title in small letters may follow
        while at < len(found):
            token, size = found[at], 1
            for own in self._sizes.get(stems[at], ()):
                key = tuple(stems[at : at + own])
                title = None if plain_words().issuperset(key) else self._titles.get(key)
                if is_titled and title is None and key not in self.spelt:
                    title = self._starts.get(key)
                is_plain = key not in self.spelt and (own > 1 or (title is not None and title.text in shown))
                if title and (is_titled or is_plain):
                    token, size = Token(title.text, "", "title", "", [title]), own
                    break
                if key in self.spelt:
                    token, size = Token(" ".join(said[at : at + own]), "", "value", "", self.spelt[key]), own
                    break
            is_first = at and said[at - 1] in _BEFORE_NAMES and stems[at] not in plain_words()
            is_last = at + 1 == len(found) or found[at + 1].kind == "sign" or said[at + 1] in ("and", "or")
            first = self._known_by_first.get(said[at]) if is_first and is_last else None
            name, behind = self._surnames.get(said[at]) or first, said[at + 1] if at + 1 < len(found) else ""
            is_rare = (
                len(said[at]) >= _LEAST_SURNAME
                and stems[at] not in self._common
                and (first is not None or said[at] not in self._known_by_first)
                and said[at] not in single("no_surname")
            )
            if token is found[at] and name and (is_rare or said[at] in capitals) and behind not in capitals:
                token = Token(said[at], "", "value", "", self.spelt[name])
            cues = (
                (len(key), cue) for key, cue in _cue_table().get(said[at], ()) if tuple(said[at : at + len(key)]) == key
            )
            length, cue = next(cues, (0, ""))
            if length > size or (length and token is found[at]):
                token, size = Token(" ".join(said[at : at + length]), "", "cue", cue), length
                if cue == "content":
                    token.kind, token.cue = "word", ""
                if cue.startswith("third."):
                    token = replace(token, kind="third", cue="", unit=cue[6:])
            token.said = " ".join(one.said for one in found[at : at + size])
            yield token
            is_titled = (
                token.word.split()[-1] in _TITLED or token.kind == "title" or (token.word in _TITLED_ON and is_titled)
            )
            at += size

    def _amount_mark(self, match: re.Match[str]) -> str:
        low, written, half, unit, later, minutes = match.group("low", "number", "half", "unit", "later", "minutes")
        number, unit = float(NUMBERS.get(written) or written.replace(",", "")) + 0.5 * bool(half or later), stem(unit)
        is_hours, is_minutes = unit in ("h", "hr", "hrs", "hour"), unit in ("m", "min", "minute")
        if not is_hours and (
            minutes or (not is_minutes and (written in NUMBERS or unit == "year" or not self.has(unit)))
        ):
            return match.group()
        factor = 60 if is_hours else 1
        first, last = (factor * value + float(minutes or 0) for value in (float(low or number), number))
        return f" <n{first:.10g}-{last:.10g}:{'min' if is_hours or is_minutes else unit}> "


def _split(word: str, titles: Sequence[Value]) -> Iterator[Token]:
    if _FIRST <= ord(word[0]) < ord(_NAME):
        value = titles[ord(word) - _FIRST]
        yield Token(value.text, value.text, "title", "", [value])
    elif word == _NAME:
        yield Token(word, "", "name")
    elif word[0] == "<":
        limit, _, operator = word[2:-1].partition("|")
        numbers, _, unit = limit.partition(":")
        first, _, last = numbers.partition("-")
        yield Token(word, "", "limit", "", [], (float(first), float(last)), unit or "year", operator)
    elif word[0].isalnum():
        for part in words()["written_out"].get(word, word).split():
            yield Token(part, word)
    elif word != "-":
        yield Token(word, word, "sign")


def _years_ago(match: re.Match[str]) -> str:
    now = datetime.datetime.now(datetime.UTC).year
    if match.group() == "this decade":
        return f"<y{now // 10 * 10}-{FOREVER}>"
    number = match[1] or "one"
    years = int(number) if number.isdecimal() else NUMBERS[number]
    return f"<y{now - years * (1 if match[2] == 'year' else 10)}-{FOREVER}>"


def _year_mark(match: re.Match[str]) -> str:
    """Return the mark of a year or a decade; other numbers of four digits as they are."""
    part, century, digit, word, year = match.groups()
    if year:
        is_year = int(year) in WRITTEN_YEARS and int(year) <= datetime.datetime.now(datetime.UTC).year + 1
        return f"{part or ''} <y{year}-{year}>" if is_year else match.group()
    first = 1920 + 10 * _DECADES.index(word) if word else int(f"{century or (20 if digit in '012' else 19)}{digit}0")
    low, high = _PARTS.get(part, (0, 9))
    return f"<y{first + low}-{first + high}>"


def words_of(text: str) -> Key:
    """Return the stems of a text's words."""
    return tuple(map(stem, re.findall(_WORD, without_accents(text).replace("’", "'").casefold())))


def stem(word: str) -> str:
    """Return a folded word without the ending of a plural or a possessive."""
    word = word.removesuffix("'s")
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")) or word == "news":
        return word
    endings = (
        ("ouses", "ouse"),
        ("uses", "us"),
        ("ies", "y"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("xes", "x"),
        ("oes", "o"),
        ("s", ""),
    )
    ending, other = next(pair for pair in endings if word.endswith(pair[0]))
    return word.removesuffix(ending) + other
