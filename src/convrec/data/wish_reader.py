"""Reads wishes from conversations: what a user excludes, asks for, and limits in years and other numbers.

What the catalog knows in the user's words is asked for, unless it is denied. A denial covers what follows it and what
is coordinated with that, up to the end of the clause (NegEx, Chapman et al., 2001, has such scopes); some stand behind
what they deny. A certain wish beats a doubtful one, and the last word on a value or a limit counts. What says nothing
to the catalog is told in the user's words.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA

from convrec.data.catalog import Catalog, short_values
from convrec.data.titles import fold
from convrec.data.wish_marks import (
    ARTICLE,
    FOREVER,
    MARKS,
    PEOPLE,
    PLACES,
    Key,
    Marker,
    Token,
    Value,
    foreign_words,
    nouns,
    plain_words,
    single,
    stem,
    words,
    words_of,
)
from convrec.data.wish_references import resolved
from convrec.data.wish_scopes import ARTICLES, DENIED, ENDS, REACH, Mark, polarities
from convrec.data.wishes import Wish

LONGEST_READ = 10_000  # last characters of a conversation that are read
# So many conversations are kept at most, and so many bytes for wishes of four a conversation, each a byte an item. A
# conversation's text comes on top, and wishes may be more than four (see `WishReader.read`).
_MOST_KEPT, _CELLS = 20_000, 2**28
_MOST_WISHES = 50  # of a conversation; the last ones count
_MOST_UNUSED = 20  # phrases of a message that are told
_LEAST_MISSPELT, _SIMILAR = 5, 0.8  # letters, and share of them that are right, of a name that is offered
_RARE, _RARE_SHARE = 19, 0.05  # items, and their share, of a value that is as particular as a person
_NEAR = 8  # tokens around a limit that say what it is of
_ALL = {"all", "everything", "every"}  # of a person's films, which were seen
_ADDING = {"also", "additionally", "another", "more"}  # to what was asked for before
_TIES = {"by", "with", "starring", "featuring", "from", "in"}  # before a value that items are to have
_LIKING = {"like", "love", "enjoy", "adore", "liked", "loved", "enjoyed", "likes", "loves", "fan", "into", "seen"}
_MADE = {"from", "of", "in", "the", "made", "released", "out", "year", "only", "must", "be", "to", "has"}
_OPPOSITE = {"below": "least", "most": "above", "above": "most", "least": "below", "": ""}
_SIDES = {"below": "high", "most": "high", "above": "low", "least": "low", "": ""}
_LIMITS = {"below": "before {0}", "most": "until {1}", "above": "after {1}", "least": "since {0}", "": "{0} to {1}"}
Events = Iterator[tuple[Key, Wish | None]]


class WishReader:
    """Reads the wishes of conversations about a catalog. Thread-safe."""

    def __init__(self, catalog: Catalog):
        self.catalog, self._marker = catalog, Marker(catalog)
        self.mentions, self.spelt = self._marker.mentions, self._marker.spelt

    def read(self, messages: Sequence[Mapping[str, Any]]) -> list[Wish]:
        """Return the wishes of a conversation's user, in order; its first turn's come first.

        A message of the assistant may have `items`, the list that was shown, and of these `liked` and `disliked` ones,
        all as lines of the catalog; what it lacks is passed over.
        """
        wishes: dict[Key, Wish] = {}
        shown: list[Value] = []  # the titles of the last list
        named: list[Value] = []  # all titles so far
        for message, text in _last_words(messages[start_of(messages) :]):
            role = message["role"]
            tokens = self._marker.tokens(text, {one.text for one in shown}) if role in ("assistant", "user") else []
            titles = [token.values[0] for token in tokens if token.kind == "title"]
            if role == "assistant":
                titles = self._values(message.get("items", ())) or titles
                shown, named = titles or shown, [*named, *titles[::-1]]
                liked, disliked = (self._values(message.get(name, ())) for name in ("liked", "disliked"))
                wishes |= {("named", fold(one.text)): Wish(one.text, "named") for one in liked}
                wishes |= dict(map(self._without, disliked))
            if role == "user":
                named += titles
                tokens = resolved(self._marker, tokens, shown, named)
                wishes = _after(wishes, list(self._of_message(tokens, shown, named)))
        return list(wishes.values())[-_MOST_WISHES:]

    def near(self, words: str) -> str:
        """Return the title or the value of the catalog that misspelt words may mean, else an empty text."""
        said = fold(words)
        if len(said) < _LEAST_MISSPELT:
            return ""
        found = process.extractOne(said, self._names.keys(), scorer=OSA.normalized_similarity, score_cutoff=_SIMILAR)
        return self._names[found[0]] if found and found[0] != said else ""

    @cached_property
    def _names(self) -> dict[str, str]:
        """Titles, values, and surnames of people, by what is compared with the user's words."""
        fields = [pair for item in self.catalog.items for pair in short_values(item).items()]
        surnames = {value.split()[-1]: value for name, own in fields if stem(fold(name)) in PEOPLE for value in own}
        named = {fold(name): value for name, value in surnames.items() if len(name) >= _LEAST_MISSPELT}
        named |= {fold(value): value for _, own in fields for value in own}
        return named | {fold(ARTICLE.sub("", item.title)): item.title for item in self.catalog.items}

    def still_chosen(self, choices: Mapping[str, bool], message: Mapping[str, str]) -> dict[str, bool]:
        """Return the choices (see `apply`) that hold after a later message of the user: not those that it states."""
        stated = {wish.text for wish in WishReader.read(self, [message])} if choices else set()
        return {text: is_kept for text, is_kept in choices.items() if text not in stated}

    def _of_message(self, tokens: list[Token], shown: list[Value], named: list[Value]) -> Events:
        """Yield the key of what each stretch of a message asks, and the wish; None takes an earlier wish back."""
        if _is_foreign(tokens):
            text = " ".join(token.said for token in tokens if token.kind != "sign")
            yield ("unused", text), Wish(f"{text} (wishes are read in English)", "unknown")
            return
        for cue in dict.fromkeys(token.cue for token in tokens):
            if cue == "reset":
                yield ("reset", cue), None
            elif cue.startswith("free_"):
                yield ("free", cue[5:]), None
            elif cue == "else":
                yield from map(self._without, shown)
        if any(token.word in _ADDING for token in tokens):
            yield ("also", ""), None
        marks = polarities(tokens)
        only = [mark for mark in marks if mark.polarity == "only" and mark.token.kind == "value"]
        asked = {
            mark.token.values[0].column
            for mark in marks
            if only
            and mark.polarity == "want"
            and mark.token.kind == "value"
            and mark.at > only[-1].at
            and _is_asked(tokens, mark.at)
        }
        groups = list[list[Mark]]()  # of either; "only American comedies" are both
        for mark in only:
            if groups and any(token.word in ("or", "and", ",", "/") for token in tokens[groups[-1][-1].at : mark.at]):
                groups[-1].append(mark)
            else:
                groups.append([mark])
        for either in groups:
            column, fits = either[0].token.values[0].column, np.logical_or.reduce(list(map(self._fits, either)))
            if column not in asked:
                yield ("only", column), Wish(f"only {' or '.join(map(self._name, either))}", "kept", fits)
        for place, mark in enumerate(marks):
            thing = [mark]
            while place + len(thing) < len(marks) and marks[place + len(thing)].is_joined:
                thing.append(marks[place + len(thing)])
            if mark.is_joined or mark.polarity == "neutral":
                continue
            if mark.token.kind in ("value", "title"):
                yield from self._of_values(thing, tokens)
            elif mark.token.kind == "third":
                yield from self._of_third(mark, tokens, shown or named[-1:])
            elif not _is_span(mark):
                yield from self._of_limit(mark, tokens)
        spans = [
            mark for mark in marks if _is_span(mark) and not mark.is_joined and not _has(tokens, mark.at, "no_year")
        ]
        if spans:
            is_loose = any(_has(tokens, mark.at, "loose") or not _is_attached(tokens, mark.at) for mark in spans)
            fits = np.logical_or.reduce([self._fits(mark) for mark in spans])
            text = " or ".join(dict.fromkeys(map(self._name, spans)))
            yield ("year", "in"), self._limited(text, fits, "year", is_loose)
        yield from self._of_unused(tokens)

    def _of_values(self, thing: list[Mark], tokens: list[Token]) -> Events:
        token, polarity, at = thing[0].token, thing[0].polarity, thing[0].at
        if token.kind == "title":
            if polarity in DENIED | {"seen"}:
                yield from (self._without(value, is_seen=polarity == "seen") for value in token.values)
            elif polarity in ("want", "welcome") and token.unit != "list":  # "all of these are old"
                yield from ((("named", fold(value.text)), Wish(value.text, "named")) for value in token.values)
            return
        name, said = " ".join(map(self._name, thing)), " ".join(mark.token.said for mark in thing)
        fits = np.logical_and.reduce([self._fits(mark) for mark in thing])
        if polarity in DENIED and any(value.is_narrower for mark in thing for value in mark.token.values):
            yield ("unused", said), Wish(f"no {said}", "unknown")
        elif polarity in DENIED:
            against = frozenset(fold(mark.token.values[0].text) for mark in thing if mark.token.values)
            yield (
                ("against", *sorted(against)),
                Wish(f"no {name}", "unsure" if polarity == "doubt" else "kept", ~fits, against),
            )
        elif polarity == "seen" and not _ALL.isdisjoint(token.word for token in tokens[max(0, at - REACH) : at]):
            person = fold(token.values[0].text)  # "seen everything by Miyazaki"
            yield ("against", person), Wish(f"no {name}", "kept", ~fits, frozenset({person}))
        elif polarity == "less":
            yield ("less", name), Wish(f"less {token.said}", "preferred", ~fits)
        elif polarity in ("again", "forget", "want", "welcome"):
            value, is_back = token.values[0], polarity in ("again", "forget")
            is_asked = polarity == "welcome" or _is_asked(tokens, at)
            is_soft = _changes_a_title(tokens, at) or (
                is_asked and is_particular(value.column, fits) and _is_for_an_item(tokens, at)
            )
            if polarity == "again" or (is_asked and not is_back):
                yield ("against", fold(value.text)), None
            if polarity in ("again", "welcome"):
                yield ("only", value.column), None
            wish = Wish(value.text, "kept" if is_soft else "preferred", fits, is_soft=is_soft, is_asked=is_asked)
            for kind in ("asked", "mentioned") if is_back else ("asked",) if is_asked else ("mentioned",):
                yield (kind, value.column, fold(value.text)), None if is_back else wish

    def _values(self, lines: Iterable[str]) -> list[Value]:
        indices = self.catalog.indices_of_lines(lines)
        return [Value(self.catalog.items[index].title, [index]) for index in indices if index is not None]

    def _without(self, title: Value, is_seen: bool = False) -> tuple[Key, Wish]:
        """Return the wish for a list without a title, which says nothing against one that was seen."""
        fits, said = np.ones(len(self.catalog), bool), fold(title.text)
        fits[title.items] = False
        return ("without", said), Wish(f"not {title.text}", "kept", fits, frozenset(() if is_seen else (said,)))

    def _name(self, mark: Mark) -> str:
        token = mark.token
        if token.values:
            return token.values[0].text
        (low, high), unit = token.numbers, "minutes" if token.unit == "min" else f"{token.unit}s"
        operator = token.operator or ("least" if high >= FOREVER else "")
        if token.unit == "year":
            return (
                f"{low:.0f}" if low == high and not operator else _LIMITS[operator].format(f"{low:.0f}", f"{high:.0f}")
            )
        words_for = {"below": "under", "most": "at most", "above": "over", "least": "at least", "": "about"}
        return f"{words_for[operator]} {high:.10g} {unit}" if low == high else f"{low:.10g} to {high:.10g} {unit}"

    def _fits(self, mark: Mark) -> np.ndarray:
        """Return the items that a mark means, whatever its polarity. Shape: (C,)."""
        token, fits = mark.token, np.zeros(len(self.catalog), bool)
        if token.kind != "limit":
            fits[[item for value in token.values for item in value.items]] = True
            return fits
        column, (low, high) = self._marker.column(token.unit), token.numbers
        slack = 0.1 * high if token.unit != "year" and low == high else 0
        compared = {"below": column < low, "most": column <= high, "above": column > high, "least": column >= low}
        return compared.get(token.operator, (column >= low - slack) & (column <= high + slack))

    def _limited(self, text: str, fits: np.ndarray, unit: str, is_loose: bool) -> Wish:
        if not self._marker.has(unit):
            return Wish(text, "unknown")
        return Wish(text, "preferred" if is_loose else "kept", fits)

    def _of_limit(self, mark: Mark, tokens: list[Token]) -> Events:
        token, unit, is_denied = mark.token, mark.token.unit, mark.polarity in DENIED | {"less"}
        if _has(tokens, mark.at, "no_year" if unit == "year" else "no_amount"):
            return
        operator = "least" if token.numbers[1] >= FOREVER else token.operator
        if is_denied and unit == "year" and not operator:
            text, is_known = self._name(mark), ~np.isnan(self._marker.column(unit))
            yield ("year", "not", text), self._limited(f"not {text}", ~self._fits(mark) & is_known, unit, False)
            return
        operator = (_OPPOSITE[operator] or "most") if is_denied else operator
        stated = replace(mark, token=replace(token, operator=operator))
        side = _SIDES[operator] or ("in" if token.numbers[0] < token.numbers[1] else "loose")
        is_loose = side == "loose" or _has(tokens, mark.at, "loose")
        key = ("year",) if unit == "year" else ("amount", unit)
        wish = self._limited(self._name(stated), self._fits(stated), unit, is_loose)
        yield (*key, "loose" if is_loose else side), wish

    def _of_third(self, mark: Mark, tokens: list[Token], shown: Sequence[Value]) -> Events:
        """Yield what a word such as "shorter" asks: against what was shown or a title, else a third of the catalog."""
        said, at, is_more = mark.token.word, mark.at, mark.token.unit in ("new", "long")
        unit = "year" if mark.token.unit in ("old", "new") else "min" if self._marker.has("min") else "page"
        is_denied = mark.polarity in DENIED | {"less"} or (at > 0 and tokens[at - 1].word == "too")
        name = {"min": " minutes", "page": " pages"}.get(unit, "")
        negation, column, is_least = "not " * is_denied, self._marker.column(unit), is_more != is_denied
        if not self._marker.has(unit):
            yield ("unused", said), Wish(negation + said, "unknown")
            return
        behind, is_comparison = tokens[at + 1 : at + 3], said.endswith("er") or "more" in said
        near = [*tokens[max(0, at - 2) : at], *behind]
        is_open = any(token.kind == "third" for token in near) or any(token.cue == "behind.want" for token in behind)
        if is_open or any(token.kind == "limit" and token.unit == unit for token in tokens):
            return  # it only says more of a limit, or takes any, as in "older is fine" and "new or old"
        is_than, key = bool(behind) and behind[0].word == "than", ("year",) if unit == "year" else ("amount", unit)
        others: Sequence[Value] = shown if is_comparison else []
        if is_than and behind[-1].kind == "title":
            others = behind[-1].values
        limits = column[[item for value in others for item in value.items]]
        limits = limits[~np.isnan(limits)]
        if len(limits):
            of = np.median if unit != "year" else np.max if is_more else np.min  # newer than all of them
            limit, is_kept = float(of(limits)), is_than or len(others) > 1 or _changes_a_title(tokens, at)
            fits = ((column > limit if is_more else column < limit) != is_denied) & ~np.isnan(column)
            text = f"{negation}{said} than {others[0].text if len(others) == 1 else f'{limit:.0f}{name}'}"
            side = ("low" if is_least else "high") if is_kept else "loose"
            yield (*key, side), self._limited(text, fits, unit, not is_kept)
            return
        limit = np.nanquantile(column, 2 / 3 if is_more else 1 / 3, method="higher" if is_least else "lower")
        sides = ("since", "until") if unit == "year" else ("at least", "at most")
        fits = column >= limit if is_least else column <= limit
        yield (*key, "loose"), self._limited(f"{sides[not is_least]} {limit:.10g}{name}", fits, unit, True)

    def _of_unused(self, tokens: list[Token]) -> Events:
        phrases = list[tuple[str, list[Token]]]()
        last, denial, is_open = -2, "", False  # open: nothing was denied yet
        for at, token in enumerate(tokens):
            is_content = token.kind == "word" and token.word not in plain_words() and len(token.word) > 1
            if token.kind == "sign":
                is_list = bool(tokens[at + 1 :]) and tokens[at + 1].word not in plain_words() and token.word in ",/"
                denial = denial if is_list else ""
            elif token.cue in ("not", "against", "less", "hated"):
                denial, is_open = "less " if token.cue == "less" else "no ", True
            elif (token.cue in ("asks", "ends") and not is_open) or (
                token.word == "a" and at and tokens[at - 1].word == "and"
            ):
                denial = ""
            elif token.word in ("for", "with") and (size := _whom(tokens[at : at + 4])):
                phrases.append(("", tokens[at : at + size]))
            elif is_content and last == at - 1:
                phrases[-1][1].append(token)
            elif is_content:
                phrases.append((denial, [token]))
            is_open = is_open and not is_content and token.kind not in MARKS
            last = at if is_content else last
        for denied, phrase in phrases[:_MOST_UNUSED]:
            text = " ".join(token.said for token in phrase)
            is_tried = not denied and all(
                word in self._marker.vocabulary or word in plain_words() for word in words_of(text)
            )
            yield ("unused", text), Wish(denied + text, "tried" if is_tried else "unknown")


def _after(wishes: dict[Key, Wish], events: list[tuple[Key, Wish | None]]) -> dict[Key, Wish]:
    """Return the wishes after what a message says."""
    # What was asked for before is over.
    columns = {key[1] for key, wish in events if key[0] == "asked" and wish is not None}
    columns = set() if ("also", "") in dict(events) else columns
    wishes = {
        key: own for key, own in wishes.items() if key[0] not in ("asked", "mentioned", "only") or key[1] not in columns
    }
    asked = {key[-1] for key, wish in events if key[0] == "asked" and wish is not None}
    events = [  # what is asked for and refused in one message is asked back
        (key, replace(wish, state="unsure") if wish and key[0] == "against" and asked.issuperset(key[1:]) else wish)
        for key, wish in events
    ]
    together = {key for key, _ in events if key[0] == "year"} - wishes.keys()  # limits of one message hold together
    for key, wish in events:
        if key[0] == "mentioned" and any(own[0] == "against" and key[-1] in own[1:] for own in wishes):
            continue  # a certain wish beats what is only mentioned
        wishes = {
            own: old for own, old in wishes.items() if own != key and (own in together or not _is_over(own, key, wish))
        }
        if wish is not None:
            wishes[key] = wish
    return wishes


def _is_span(mark: Mark) -> bool:
    """Return whether a mark is of years that are wanted, from one to another."""
    token = mark.token
    is_year = token.kind == "limit" and token.unit == "year" and not token.operator and token.numbers[1] < FOREVER
    return is_year and mark.polarity not in DENIED | {"neutral"}


def _has(tokens: list[Token], at: int, name: str) -> bool:
    """Return whether a phrase of a list stands near a limit, up to the next signs."""
    start, end = at, at + 1
    while start > max(0, at - _NEAR) and tokens[start - 1].kind != "sign":
        start -= 1
    while end < min(len(tokens), at + _NEAR) and tokens[end].kind != "sign":
        end += 1
    clause = f" {' '.join(token.word for token in tokens[start:end])} "
    if name == "no_year" and ("year i was" in clause or tokens[at].operator):
        return any(f" {said} " in clause for said in ("since i", "seen", "been a", "have been", "most of them are"))
    if name == "no_year" and tokens[at + 1 : at + 2] and tokens[at + 1].word in ("was", "were"):
        return True  # "the 80s were great"
    return any(f" {' '.join(phrase)} " in clause for phrase in words()[name])


def _is_attached(tokens: list[Token], at: int) -> bool:
    """Return whether years belong to a noun or a value, as in "a comedy from the 90s", or begin a sentence."""
    place = next((place for place in range(at - 1, -1, -1) if tokens[place].word not in _MADE), -1)
    before = tokens[place] if place >= 0 else None
    if any(token.word in ("made", "released") for token in tokens[place + 1 : at]):
        return True
    behind = tokens[at + 1 : at + 2]
    if before is None or before.word in ENDS or any(token.kind == "value" or token.word in nouns() for token in behind):
        return True
    is_listed = before.word in ("or", "and", "/") and at > 2 and tokens[at - 2].kind == "limit"
    return is_listed or before.kind in ("value", "limit") or before.word in nouns() | ARTICLES | {"ones"}


def is_particular(column: str, fits: np.ndarray) -> bool:
    """Return whether who asks for a value means it: a person, a place, or a value that few items have."""
    return is_rare(fits) or stem(fold(column)) in PEOPLE | PLACES


def is_rare(fits: np.ndarray) -> bool:
    """Return whether few items fit: at most 19, and 5 % of the catalog."""
    return bool(fits.sum() <= min(_RARE, _RARE_SHARE * len(fits)))


def _is_asked(tokens: list[Token], at: int) -> bool:
    """Return whether a value is asked for in so many words, begins its sentence, or is tied to a word for an item."""
    first = at  # of the values that are listed
    while first > 1 and tokens[first - 1].word in ("or", "and", ",", "/") and tokens[first - 2].kind == "value":
        first -= 2
    if first > 1 and tokens[first - 1].word in _TIES and tokens[first - 2].word in nouns():
        return True
    for place in range(at - 1, max(-1, at - 7), -1):
        token = tokens[place]
        if token.kind == "sign":
            return token.word in ENDS or place < 2
        if token.cue == "asks":
            return True
        if token.kind == "word" and token.word not in plain_words():
            return False
    return at < 3


def _is_for_an_item(tokens: list[Token], at: int) -> bool:
    """Return whether a value says what items are to be like, as in "French films" or "with Tom Hanks".

    Where another one will do, as in "French or Italian", none is.
    """
    behind = tokens[at + 1] if at + 1 < len(tokens) else None
    start, end = at, at
    while start and tokens[start - 1].kind != "sign":
        start -= 1
    while end < len(tokens) and tokens[end].word not in ENDS:
        end += 1
    is_either = any(token.word == "or" for token in tokens[max(0, at - _NEAR) : min(end, at + _NEAR)])
    if is_either or any(token.word in _LIKING for token in tokens[start:at]):
        return False
    is_named = behind is not None and (behind.word in nouns() or behind.kind == "value")
    is_alone = at == start and (behind is None or behind.kind == "sign" or behind.word in _TIES | {"please", "about"})
    return is_named or is_alone or at > start and tokens[at - 1].word in _TIES | ARTICLES | {"any", "good"}


def _changes_a_title(tokens: list[Token], at: int) -> bool:
    """Return whether something says how another item than a liked title should be, as in "like Alien, but funny"."""
    near = tokens[max(0, at - 9) : at]
    said = [token.word for token in near]
    if "but" not in said or "or" in (said[-1], *(token.word for token in tokens[at + 1 : at + 2])) or ENDS & set(said):
        return False
    but = said.index("but")
    return "i" not in said[but:] and "like" in said[:but] and any(token.kind == "title" for token in near[:but])


def _whom(tokens: list[Token]) -> int:
    """Return the number of words that say for whom or with whom something is meant, 0 for none."""
    for size, token in enumerate(tokens[1:], start=2):
        if token.kind in ("sign", "value") or token.word in single("for_whom"):
            return size if token.word in single("for_whom") else 0
    return 0


def _is_foreign(tokens: list[Token]) -> bool:
    """Return whether a message is in another language than English, by its most frequent words."""
    said = [token.word for token in tokens if token.kind in ("word", "cue")]
    foreign = sum(word in foreign_words() for word in said)
    return foreign >= 2 and foreign > sum(word in plain_words() for word in said)


@cache
def _starts_over() -> re.Pattern[str]:
    starts, openers = (
        "|".join(sorted(map(" ".join, words()[name]), key=len, reverse=True)) for name in ("start", "opener")
    )
    return re.compile(rf"(?:^|[^\w\s])\s*(?:(?:{openers})[\s,.]+){{0,6}}(?:{starts})\b", re.IGNORECASE)


def start_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the last message of the user that starts over, from which a conversation counts; else 0."""
    for at in range(len(messages) - 1, 0, -1):
        if messages[at]["role"] == "user" and _starts_over().search(messages[at]["content"][-LONGEST_READ:]):
            return at
    return 0


def _last_words(messages: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], str]]:
    """Return the last messages and their texts, `LONGEST_READ` characters in all."""
    found, room = [], LONGEST_READ
    for message in reversed(messages):
        text = message["content"][-room:]
        found.append((message, text))
        room -= len(text)
        if room <= 0:
            break
    return found[::-1]


def _is_over(own: Key, key: Key, wish: Wish | None) -> bool:
    """Return whether an earlier wish, of the key `own`, is over by what is said later, of another key."""
    match key:
        case ("reset", _):
            return True
        case ("free", limit):
            return own[0] == limit
        case ("year", "in") if wish is not None and wish.state == "kept":
            return own[0] == "year"
        case ("year", side) if side != "not" and own in (("year", "in"), ("year", "loose")):
            return True
        case ("without", title):
            return own == ("named", title)
        case ("against", value) if wish is not None and wish.state == "kept":
            return own[0] in ("asked", "mentioned", "less") and own[-1] == value
    return False


def wish_reader(catalog: Catalog) -> WishReader:
    """Return the reader of a catalog, the same for all callers."""
    return catalog.once(WishReader)


def wishes_of(row: Mapping[str, Any], catalog: Catalog) -> list[Wish]:
    """Return the wishes of a row: its `wishes`, or else those that its conversation tells (see `WishReader.read`).

    Stages ask for those of a conversation again and again: it is read once.
    """
    if "wishes" in row:
        return list(row["wishes"])
    return list(catalog.once(_kept_reader)(tuple((message["role"], message["content"]) for message in row["messages"])))


def _kept_reader(catalog: Catalog) -> Callable[[tuple[tuple[str, str], ...]], list[Wish]]:
    read = wish_reader(catalog).read
    return lru_cache(maxsize=min(_MOST_KEPT, _CELLS // (4 * len(catalog))))(
        lambda said: read([{"role": role, "content": words} for role, words in said])
    )
