"""Reads wishes from conversations: what a user excludes, asks for, and limits in years and other numbers.

What the catalog knows in the user's words is asked for, unless it is denied. A denial covers what follows it and what
is coordinated with that, up to the end of the clause (NegEx, Chapman et al., 2001, has such scopes); some stand behind
what they deny. A certain wish beats a doubtful one, and the last word on a value or a limit counts. What says nothing
to the catalog is told in the user's words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import takewhile
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
    NUMBERS,
    PEOPLE,
    PLACES,
    Key,
    Marker,
    Token,
    Value,
    fillers,
    foreign_words,
    nouns,
    plain_words,
    single,
    stem,
    words,
    words_of,
)
from convrec.data.wishes import Wish

LONGEST_READ = 10_000  # last characters of a conversation that are read
_MOST_WISHES = 50  # of a conversation; the last ones count
_MOST_UNUSED = 20  # phrases of a message that are told
_REACH = 5  # words without a meaning between a denial and what it denies
_LEAST_MISSPELT, _SIMILAR = 5, 0.8  # letters, and share of them that are right, of a name that is offered
_NEAR = 8  # tokens around a limit that say what it is of
_ENDS = {".", "!", ";", "?"}
_ADDING = {"also", "additionally", "another", "more"}  # to what was asked for before
_TIES = {"by", "with", "starring", "featuring", "from", "in"}  # before a value that items are to have
_LIKING = {"like", "love", "enjoy", "adore", "liked", "loved", "enjoyed", "likes", "loves", "fan", "into", "seen"}
_MADE = {"from", "of", "in", "the", "made", "released", "out", "year", "only", "must", "be", "to", "has"}
_ARTICLES = {"a", "an", "some", "something", "anything"}
_GOES_ON = {"or", "nor", "anything", "nothing", "no", "any"}  # between a value and a limit that is denied, too
_DENIED = {"deny", "hated", "doubt"}
_COUNTED = {
    "seen",
    "number",
    "not",
    "like",
    "and",
    "or",
    ",",
    "into",
    "except",
    "liked",
    "loved",
    "watched",
    "no",
    "saw",
    "did",
    "hated",
    "skip",
}  # before a number
_COUNTED_ON = {"and", "or", "already", "before", "but", "please"}  # behind a number of a list that was shown
_BEFORE_IT = {",", "?", ":", "but", "and", "definitely", "simply", "though"}  # before what stands behind a value
_TAKING = {"no", "way", "hate", "stand", "interested", "fan", "not"}
_SCOPES = {"against": "deny", "not": "deny"}
_OPPOSITE = {"below": "least", "most": "above", "above": "most", "least": "below", "": ""}
_SIDES = {"below": "high", "most": "high", "above": "low", "least": "low", "": ""}
_LIMITS = {"below": "before {0}", "most": "until {1}", "above": "after {1}", "least": "since {0}", "": "{0} to {1}"}
_SAME = {"star": {"star", "actor", "cast"}, "actor": {"star", "actor", "cast"}, "actress": {"star", "actor", "cast"}}
Events = Iterator[tuple[Key, Wish | None]]


@dataclass(eq=False)
class _Mark:
    """A token that the catalog knows at a place, and what its words make of it."""

    token: Token
    at: int
    polarity: str = "want"  # welcome, deny, hated, doubt, less, again, forget, only, seen, neutral
    is_joined: bool = False  # to the mark before it: what is denied has both


class WishReader:
    """Reads the wishes of conversations about a catalog. Thread-safe."""

    def __init__(self, catalog: Catalog):
        self.catalog, self._marker = catalog, Marker(catalog)
        self.mentions = self._marker.mentions

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
                wishes = _after(wishes, list(self._of_message(self._resolved(tokens, shown, named), shown, named)))
        return [_alone(wish, key, wishes) for key, wish in wishes.items()][-_MOST_WISHES:]

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
        stated = {wish.text for wish in self.read([message])} if choices else set()
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
        marks = _polarities(tokens)
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
        groups = list[list[_Mark]]()  # of either; "only American comedies" are both
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

    def _of_values(self, thing: list[_Mark], tokens: list[Token]) -> Events:
        token, polarity, at = thing[0].token, thing[0].polarity, thing[0].at
        if token.kind == "title":
            if polarity in _DENIED | {"seen"}:
                yield from map(self._without, token.values)
            elif polarity in ("want", "welcome") and token.unit != "list":  # "all of these are old"
                yield from ((("named", fold(value.text)), Wish(value.text, "named")) for value in token.values)
            return
        name, said = " ".join(map(self._name, thing)), " ".join(mark.token.said for mark in thing)
        fits = np.logical_and.reduce([self._fits(mark) for mark in thing])
        if polarity in _DENIED and any(value.is_narrower for mark in thing for value in mark.token.values):
            yield ("unused", said), Wish(f"no {said}", "unknown")
        elif polarity in _DENIED:
            against = frozenset(fold(mark.token.values[0].text) for mark in thing if mark.token.values)
            yield (
                ("against", *sorted(against)),
                Wish(f"no {name}", "unsure" if polarity == "doubt" else "kept", ~fits, against),
            )
        elif polarity == "less":
            yield ("less", name), Wish(f"less {token.said}", "preferred", ~fits)
        elif polarity in ("again", "forget", "want", "welcome"):
            value, is_back = token.values[0], polarity in ("again", "forget")
            is_asked = polarity == "welcome" or _is_asked(tokens, at)
            is_soft = _changes_a_title(tokens, at) or (
                is_asked and stem(fold(value.column)) in PEOPLE | PLACES and _is_for_an_item(tokens, at)
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

    def _without(self, title: Value) -> tuple[Key, Wish]:
        fits, against = np.ones(len(self.catalog), bool), fold(title.text)
        fits[title.items] = False
        return ("without", against), Wish(f"not {title.text}", "kept", fits, frozenset({against}))

    def _name(self, mark: _Mark) -> str:
        token = mark.token
        if token.values:
            return token.values[0].text
        (low, high), unit = token.numbers, "minutes" if token.unit == "min" else f"{token.unit}s"
        operator = token.operator or ("least" if high >= FOREVER else "")
        if token.unit == "year":
            return (
                f"{low:.0f}" if low == high and not operator else _LIMITS[operator].format(f"{low:.0f}", f"{high:.0f}")
            )
        words_for = {"below": "at most", "most": "at most", "above": "at least", "least": "at least", "": "about"}
        return f"{words_for[operator]} {high:.10g} {unit}" if low == high else f"{low:.10g} to {high:.10g} {unit}"

    def _fits(self, mark: _Mark) -> np.ndarray:
        """Return the items that a mark means, whatever its polarity. Shape: (C,)."""
        token, fits = mark.token, np.zeros(len(self.catalog), bool)
        if token.kind != "limit":
            fits[[item for value in token.values for item in value.items]] = True
            return fits
        column, (low, high) = self._marker.column(token.unit), token.numbers
        if token.unit != "year" and token.operator in ("below", "above"):  # "under two hours" may be two hours
            return column <= high if token.operator == "below" else column >= low
        slack = 0.1 * high if token.unit != "year" and low == high else 0
        compared = {"below": column < low, "most": column <= high, "above": column > high, "least": column >= low}
        return compared.get(token.operator, (column >= low - slack) & (column <= high + slack))

    def _limited(self, text: str, fits: np.ndarray, unit: str, is_loose: bool) -> Wish:
        if not self._marker.has(unit):
            return Wish(text, "unknown")
        return Wish(text, "preferred" if is_loose else "kept", fits)

    def _of_limit(self, mark: _Mark, tokens: list[Token]) -> Events:
        token, unit, is_denied = mark.token, mark.token.unit, mark.polarity in _DENIED | {"less"}
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

    def _of_third(self, mark: _Mark, tokens: list[Token], shown: Sequence[Value]) -> Events:
        """Yield what a word such as "shorter" asks: against what was shown or a title, else a third of the catalog."""
        said, at, is_more = mark.token.word, mark.at, mark.token.unit in ("new", "long")
        unit = "year" if mark.token.unit in ("old", "new") else "min" if self._marker.has("min") else "page"
        is_denied, name = mark.polarity in _DENIED | {"less"}, {"min": " minutes", "page": " pages"}.get(unit, "")
        negation, column, is_least = "not " * is_denied, self._marker.column(unit), is_more != is_denied
        if not self._marker.has(unit):
            yield ("unused", said), Wish(negation + said, "unknown")
            return
        if any(token.kind == "limit" and token.unit == unit for token in tokens):
            return  # it only says more of a limit
        behind, is_comparison = tokens[at + 1 : at + 3], said.endswith("er") or "more" in said
        is_than, key = bool(behind) and behind[0].word == "than", ("year",) if unit == "year" else ("amount", unit)
        others: Sequence[Value] = shown if is_comparison else []
        if is_than and behind[-1].kind == "title":
            others = behind[-1].values
        limits = column[[item for value in others for item in value.items]]
        limits = limits[~np.isnan(limits)]
        if len(limits):
            limit, is_kept = float(np.median(limits)), is_than or len(others) > 1 or _changes_a_title(tokens, at)
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

    def _resolved(self, tokens: list[Token], shown: list[Value], named: list[Value]) -> list[Token]:
        """Return the tokens, with values in place of what points at a list that was shown or at people of a title."""
        found, at = list[Token](), 0
        while at < len(tokens):
            size, values, kind = 1, list[Value](), "title"
            if shown:
                is_seen = any(token.cue == "seen" for token in tokens[max(0, at - _REACH) : at])
                size, values = _pointed(tokens[at : at + 6], shown, tokens[at - 1].word if at else "", is_seen)
            people, column = self._same(tokens[at : at + 2], named)
            if people:
                found_in = [value for text in people for value in self._marker.spelt.get(words_of(text), ())]
                items = [item for value in found_in for item in value.items]
                size, values, kind = 2, [Value(" or ".join(people), items, column)], "value"
            if tokens[at].word in ("after", "before") and tokens[at + 1 : at + 2] and tokens[at + 1].kind == "title":
                year = self.catalog.items[tokens[at + 1].values[0].items[0]].year
                if year and (at == 0 or tokens[at - 1].word in nouns() | _ARTICLES | {"made", "released", "from"}):
                    operator = "above" if tokens[at].word == "after" else "below"
                    found.append(Token(tokens[at].word, "", "limit", "", [], (year, year), "year", operator))
                    at += 2
                    continue
            said = " ".join(token.said for token in tokens[at : at + size])
            is_them = tokens[at].cue == "behind.seen" and tokens[at].word.endswith(("them", "those"))
            if is_them and shown and not any(token.kind in MARKS for token in _clause(found)):
                found.append(Token("seen", "seen", "cue", "seen"))
                values, kind = shown, "title"
            is_list = values == shown and len(shown) > 1 and "like" not in [token.word for token in found[-3:]]
            found.append(Token(said, said, kind, "", values, unit="list" * is_list) if values else tokens[at])
            at += size if values else 1
        return found

    def _same(self, tokens: list[Token], named: list[Value]) -> tuple[list[str], str]:
        """Return the people of the title that was named last, as in "the same director", and their column."""
        if len(tokens) < 2 or tokens[0].word not in ("same", "that") or not named or not named[-1].items:
            return [], ""
        column, own = stem(tokens[1].word), short_values(self.catalog.items[named[-1].items[0]])
        names = _SAME.get(column, {column})
        return [text for name, texts in own.items() if stem(fold(name)) in names for text in texts], column


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


def _alone(wish: Wish, key: Key, wishes: Mapping[Key, Wish]) -> Wish:
    """Return a wish, as preferred where it is soft and one of several people or places: either of them will do."""
    group = next((own for own in (PEOPLE, PLACES) if wish.is_soft and stem(fold(key[1])) in own), None)
    others = [own for own in wishes if own[0] in ("asked", "mentioned") and stem(fold(own[1])) in (group or ())]
    return replace(wish, state="preferred", is_soft=False) if len(others) > 1 else wish


def _clause(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens behind the last sign."""
    return list(takewhile(lambda token: token.kind != "sign", reversed(tokens)))


def _is_span(mark: _Mark) -> bool:
    """Return whether a mark is of years that are wanted, from one to another."""
    token = mark.token
    is_year = token.kind == "limit" and token.unit == "year" and not token.operator and token.numbers[1] < FOREVER
    return is_year and mark.polarity not in _DENIED | {"neutral"}


def _polarities(tokens: list[Token]) -> list[_Mark]:
    """Return what the catalog knows in the tokens, each with its polarity."""
    marks: list[_Mark] = []
    scope, last, gap = "", None, 0  # the polarity of what follows, the last mark in it, words since it began
    for at, token in enumerate(tokens):
        cue, before, behind = token.cue, tokens[at - 1].word if at else "", tokens[at + 1 : at + 3]
        rest = takewhile(lambda own: own.kind != "sign", tokens[at + 1 :])
        if cue == "statement":
            cue = "not" if _is_asked_item(tokens[:at]) else "neutral"
        is_end = not behind or behind[0].kind == "sign"
        if token.kind in MARKS:
            mark = _Mark(token, at, scope or "want")
            if last is not None:
                link = _link(tokens[last.at + 1 : at], behind)
                link = "listed" if link == "joined" and token.kind == last.token.kind == "title" else link
                if token.kind == "limit" != last.token.kind and link in ("listed", "comma"):  # "no war, and after 2010"
                    said = {one.word for one in tokens[last.at + 1 : at]}
                    link = link if said & _GOES_ON else ""
                is_sure = scope != "deny" or token.kind == last.token.kind == "title" or _is_listed(tokens, last.at, at)
                mark.is_joined = (
                    link == "joined" and last.polarity in _DENIED and "third" not in (token.kind, last.token.kind)
                )
                mark.polarity = {
                    "joined": last.polarity if mark.is_joined else "want",
                    "listed": scope,
                    "comma": scope if is_sure else "doubt",
                }.get(link, "want")
                scope = scope if link else ""
            if mark.polarity in _DENIED and _is_of_a_person(token, behind, before):
                mark.polarity = "neutral"
            is_aside = last is None and gap and (before,) in words()["attaches"]  # "no trilogies with Tom Hanks"
            if mark.polarity == "deny" and (is_aside or (behind and behind[0].word in ("unless", "like"))):
                mark.polarity = "doubt"
            last = mark if scope else None
            marks.append(mark)
        elif token.kind == "sign":
            is_answered = token.word == "?" and bool(behind) and behind[0].cue.startswith("behind.")
            is_heading = token.word == ":" and scope and last is None and not gap  # "seen: Heat, Alien"
            if not is_answered and not is_heading and (token.word in _ENDS or last is None or token.word not in ",/&"):
                scope, last = "", None
        elif cue.startswith("behind."):
            # What it denies may stand behind it.
            is_verb = token.word.split()[-1] in _TAKING and token.word != "a no" and not is_end
            is_denied = cue == "behind.doubt" and scope in _DENIED and last is None  # "that is not boring"
            is_done = not is_verb and not is_denied and _behind(marks, tokens, at, cue[7:])
            if cue == "behind.doubt":
                token.kind = "cue" if is_done else "word"
                if token.word.endswith(" too"):
                    scope, last, gap = "less", None, 0
            else:
                scope, last, gap = cue[7:] if not is_done and not is_end and cue != "behind.want" else "", None, 0
        elif (
            (cue in ("only", "against", "hated") and is_end)
            or (cue == "seen" and not any(own.kind in MARKS for own in rest))
        ) and _behind(marks, tokens, at, cue if cue in ("only", "seen") else "deny"):
            scope = ""
        elif cue == "not" and is_end and (not behind or token.word in ("no", "not")):
            if before in ("?", ":"):
                _behind(marks, tokens, at, "deny")
        elif cue in ("not", "against", "hated", "less", "again", "forget", "only", "seen", "neutral"):
            if (
                (scope, cue)
                in (
                    ("deny", "seen"),
                    ("again", "seen"),
                    ("less", "not"),
                    ("neutral", "hated"),
                )
                and last is None
                and not gap
            ):
                continue
            is_double = cue in ("against", "hated") and scope == "deny" and last is None and gap <= 1
            if is_double:  # "do not hate", "not anything but"
                scope = "only" if token.word.startswith("anything") else "again"
            elif (
                token.word == "not"
                and before == "but"
                and marks
                and marks[-1].polarity in ("deny", "hated")
                and marks[-1].token.kind == "value"
            ):
                scope = "neutral"  # "I dislike drama, but not horror"
            else:
                scope = "doubt" if cue in ("not", "against") and before in single("doubtful") else _SCOPES.get(cue, cue)
            last, gap = None, 0
        elif cue == "ditto":
            scope, last, gap = marks[-1].polarity if marks and marks[-1].polarity in _DENIED else "", None, 0
        elif cue == "aside":
            scope, last = "", None
        elif (
            token.word in single("degree")
            and last is None
            and (scope in _DENIED or (token.word == "too" and not scope))
        ):
            scope = "less"
        elif token.word == "than" and marks and marks[-1].at == at - 1:
            scope, last, gap = "neutral" if marks[-1].token.kind == "third" else "less", None, 0
        elif cue == "asks" and before == "no" and token.word.split()[0] in ("make", "give", "show"):
            scope, last = "", None  # "no, make it the 90s"
        elif cue in ("asks", "ends", "else") and before not in ("or", "nor"):
            if (
                last is not None
                or scope in ("less", "seen", "only", "again")
                or (cue == "ends" and (gap or token.word in ("but", "because")))
            ):
                scope, last = "", None
        elif scope and last is None and token.word not in fillers():
            gap += 1
            if gap > _REACH or scope == "only":
                scope = ""
    return marks


def _link(between: list[Token], behind: list[Token]) -> str:
    """Return how a mark follows another one in a scope: joined, listed, comma, or not at all."""
    said = [token.word for token in between]
    rest = said[1:] if said and said[0] in nouns() else said
    if not said or tuple(rest) in words()["attaches"]:
        return "joined"
    plain = [
        word
        for word in rest
        if word not in ("any", "no", "even", "more", "the", "from", "of", "with", "about", "those", "not", "way")
    ]
    plain = plain[1:] if plain[:1] == [","] and plain[1:] else plain
    if plain[:1] and plain[0] in ("or", "nor", "/", "&") and set(plain[1:]) <= _ARTICLES:
        return "listed"
    if plain == ["and"] or said[-1:] == [","]:
        if behind and behind[0].word in ("would", "is", "are", "sounds"):
            return ""  # a new clause begins
        return "listed" if plain == ["and"] else "comma"
    return "comma" if said[-2:-1] == [","] and said[-1] in ("any", "no", "even") else ""


def _is_listed(tokens: list[Token], last: int, at: int) -> bool:
    """Return whether marks with a comma between are of a list: of three, or with a conjunction further on."""
    before = [token for token in tokens[max(0, last - 3) : last] if token.word == "," or token.kind in MARKS]
    if len(before) > 1 and before[-1].word == ",":
        return True
    behind = (token for token in tokens[at + 1 : at + 40] if token.word != "," and token.word not in nouns())
    following = next(behind, None)
    return following is not None and (following.kind in MARKS or following.word in ("or", "nor", "and", "etc"))


def _is_of_a_person(token: Token, behind: list[Token], before: str) -> bool:
    """Return whether a denied value belongs to a person or an occasion, as in "no horror fan" or "without the kids"."""
    if behind and behind[0].word in single("persons"):
        return before.split()[-1:] not in (["a"], ["an"], ["not"], ["big"])
    is_child = token.said in ("kids", "kid", "children", "child", "family")
    return is_child and not (behind and behind[0].word in nouns()) and (bool(behind) or before not in ("for", "no"))


def _behind(marks: list[_Mark], tokens: list[Token], at: int, polarity: str) -> bool:
    """Change the polarity of the list right before a cue; of all within reach, where something was bad."""
    place = at
    for mark in reversed(marks):
        between = tokens[mark.at + 1 : place]
        if polarity == "doubt":
            is_near = at - mark.at <= _REACH + 1 and not any(
                token.word in _ENDS or (token.word == "but" and " it " not in f" {tokens[at].word} ")
                for token in between
            )
        elif place == at:
            is_near = all(token.word in fillers() or token.word in _BEFORE_IT for token in between)
        else:
            link = _link(between, [])
            is_near = link in ("listed", "joined") or (link == "comma" and _is_listed(tokens, mark.at, place))
        is_denied_before = mark.polarity in _DENIED and polarity == "want" and not tokens[at].word.startswith("but")
        is_near = is_near and (polarity != "seen" or mark.token.kind == "title")
        if not is_near or is_denied_before or (polarity == "doubt" and mark.polarity != "want"):
            break
        names = {"want": "welcome", "doubt": "hated" if mark.token.kind == "title" else "doubt"}
        mark.polarity, place = names.get(polarity, polarity), mark.at
    return place < at


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
    if (
        before is None
        or before.word in _ENDS
        or any(token.kind == "value" or token.word in nouns() for token in behind)
    ):
        return True
    is_listed = before.word in ("or", "and", "/") and at > 2 and tokens[at - 2].kind == "limit"
    return is_listed or before.kind in ("value", "limit") or before.word in nouns() | _ARTICLES | {"ones"}


def _is_asked_item(tokens: list[Token]) -> bool:
    """Return whether tokens end in what is asked for, such as "something", "anything good" or "a comedy"."""
    last = [token for token in tokens if token.word != ","][-2:]
    is_thing = bool(last) and (last[-1].kind == "value" or last[-1].word in nouns())
    return is_thing or any(token.word in ("something", "anything") for token in last)


def _is_asked(tokens: list[Token], at: int) -> bool:
    """Return whether a value is asked for in so many words, begins its sentence, or is tied to a word for an item."""
    if at > 1 and tokens[at - 1].word in _TIES and tokens[at - 2].word in nouns():
        return True
    for place in range(at - 1, max(-1, at - 7), -1):
        token = tokens[place]
        if token.kind == "sign":
            return token.word in _ENDS or place < 2
        if token.cue == "asks":
            return True
        if token.kind == "word" and token.word not in plain_words():
            return False
    return at < 3


def _is_for_an_item(tokens: list[Token], at: int) -> bool:
    """Return whether a value says what items are to be like, as in "French films" or "with Tom Hanks"."""
    behind = tokens[at + 1] if at + 1 < len(tokens) else None
    start = at
    while start and tokens[start - 1].kind != "sign":
        start -= 1
    if any(token.word in _LIKING for token in tokens[start:at]):
        return False
    is_named = behind is not None and (behind.word in nouns() or behind.kind == "value")
    return is_named or (at > 0 and tokens[at - 1].word in _TIES)


def _changes_a_title(tokens: list[Token], at: int) -> bool:
    """Return whether something says how another item than a liked title should be, as in "like Alien, but funny"."""
    said = [token.word for token in tokens[max(0, at - 9) : at]]
    if (
        "but" not in said
        or "or" in (said[-1], *(token.word for token in tokens[at + 1 : at + 2]))
        or _ENDS & set(said)
        or "i" in said[said.index("but") :]
    ):
        return False
    start = max(0, at - 9)
    return (
        any(tokens[start + place].kind == "title" for place in range(said.index("but")))
        and "like" in said[: said.index("but")]
    )


def _pointed(tokens: list[Token], shown: list[Value], before: str, is_seen: bool) -> tuple[int, list[Value]]:
    """Return how many tokens point at items that were shown, such as "the first two", and these items.

    What was seen of them points at them as well, as in "I have seen the French ones"; "no French ones" is a value.
    """
    said, names = [token.word for token in tokens], words()["ordinals"].split()
    place = {name: number % 10 for number, name in enumerate(names)} | {"top": 0}
    match said:
        case [_, "one" | "ones", *_] if tokens[0].kind == "value" and (said[1] == "one" or is_seen):
            items = {item for value in tokens[0].values for item in value.items}
            return 2, [value for value in shown if items & set(value.items)]
        case ["number", number, *_] if 0 < int(NUMBERS.get(number, number if number.isdecimal() else 0)) <= len(shown):
            return 2, [shown[int(NUMBERS.get(number, number)) - 1]]
        case [nth, "and" | "or", other, *_] if nth in place and other in place:
            return 3, [shown[at] for at in (place[nth], place[other]) if at < len(shown)]
        case [nth, "one" | "is" | "was" as behind, *_] if nth in place and before != "the":
            return 2 if behind == "one" else 1, shown[place[nth] :][:1]
        case [number, *rest] if (
            number.isdecimal()
            and 0 < int(number) <= len(shown)
            and before.split()[-1:]
            and before.split()[-1] in _COUNTED
            and (not rest or rest[0] in _COUNTED_ON or not rest[0].isalnum())
        ):
            return 1, [shown[int(number) - 1]]
        case ["all", "of", "them" | "those" | "these" | "em", *_] | ["every", "single", "one", *_]:
            return 3, shown
        case ["everything", "here" | "there" | "above", *_]:
            return 2, shown
        case ["all", number, *_] if number in NUMBERS and int(NUMBERS[number]) == len(shown):
            return 2, shown
        case ["those" | "these" | "them" | "em", *rest] if (
            not rest or not rest[0].isalnum() or rest[0] in ("already", "all", "please", "ones", "and")
        ):
            return 1, shown
        case ["the", "last", number, *_] if number in NUMBERS:
            return 3, shown[-int(NUMBERS[number]) :]
        case ["the", "first", number, *_] if number in NUMBERS and number not in ("one", "a", "an"):
            return 3, shown[: int(NUMBERS[number])]
        case ["the", nth, "last", *_] if nth in place:
            return 3, shown[-place[nth] - 1 :][:1]
        case ["the", nth, "and" | "or", other, *_] if nth in place and other in place:
            return 4, [shown[at] for at in (place[nth], place[other]) if at < len(shown)]
        case ["the", nth, *rest] if (
            (nth in place or nth == "last")
            and rest[:1]
            and rest[0] in ("time", "night", "week", "weekend", "year", "day", "half", "thing")
        ):
            return 1, []
        case ["the", nth, *rest] if nth in place or nth == "last":
            return 3 if rest and rest[0] in nouns() else 2, shown[-1:] if nth == "last" else shown[place[nth] :][:1]
    return 1, []


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
