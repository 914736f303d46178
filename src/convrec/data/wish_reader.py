"""Reads wishes from conversations: what a user excludes, asks for, and limits in years and other numbers.

The reader marks what the catalog knows in the user's messages: values of its columns, titles, years, amounts. The words
before or behind a mark decide, such as "tired of" (`wish_words`). Precision comes before recall: a doubtful wish is
`unsure`, and not applied. The last word on a value or a limit counts.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from convrec.data import wish_words as grammar
from convrec.data.catalog import Catalog, short_values
from convrec.data.mentions import Mentions
from convrec.data.titles import WRITTEN_YEARS, fold, normalise_unicode, without_accents
from convrec.data.wishes import State, Wish

LONGEST_READ = 10_000  # last characters of a conversation that are read
_MOST_WISHES = 50  # of a conversation; the last ones count
_NEAR = 200  # characters before and behind a mark, in which the words stand that decide
_SHORT = 0.9  # share of the items with short values, from which a column is one of values and not of prose
_PEOPLE = {"actor", "artist", "author", "cast", "creator", "director", "people", "star", "writer"}
_ACTORS = {"actor", "actress", "cast", "star"}
_MINUTES = {"runtime", "duration", "length", "minute", "playtime", "playing_time", "running_time"}


@dataclass(frozen=True, eq=False)
class _Value:
    """A value of the catalog, or a title, with the indices of the items that have it: none if no column has it."""

    text: str
    items: list[int]
    column: str = ""
    is_told: bool = False  # whether it is told as not understood where it is asked for


_DENIED = re.compile(r"(?:n't|\bnot|\bnever|\bno|\bnothing|\bnobody|\bnor|\bwithout)\b(?:(?!\bbut\b)[^,])*$")
_ASKED = ("asked", "only")
_SIDES = {  # of a limit: the comparison with the first (0) or the last (1) of the years that are named
    "before": ("high", np.less, 0), "until": ("high", np.less_equal, 1),
    "after": ("low", np.greater, 1), "since": ("low", np.greater_equal, 0),
}  # fmt: skip
Key = tuple[str, ...]  # of a wish: a later one of the same key takes its place


class WishReader:
    """Reads the wishes of conversations about a catalog. Thread-safe."""

    def __init__(self, catalog: Catalog):
        self.catalog, self.mentions = catalog, Mentions(catalog)
        self._years = np.array([np.nan if item.year is None else item.year for item in catalog.items])
        self._columns: dict[str, np.ndarray] = {}  # of numbers. Shape: (C,)
        self._names: set[str] = set()  # of the columns of values
        self._spelt: dict[Key, _Value] = {}
        self._surnames: dict[str, Key | None] = {}
        self._heads: dict[str, Key | None] = {}  # the last words of other values
        self._read_values()
        self._add_spellings()
        self._sizes: dict[str, list[int]] = {}  # of values in words, by the first word
        for size, first in sorted({(len(key), key[0]) for key in self._spelt}, reverse=True):
            self._sizes.setdefault(first, []).append(size)

    def read(self, messages: Sequence[Mapping[str, str]]) -> list[Wish]:
        """Return the wishes of a conversation's user, in order; its first turn's come first."""
        wishes: dict[Key, Wish] = {}
        named: list[_Value] = []  # the titles of the conversation so far
        for role, text in _last_words(messages):
            if role == "assistant":
                named += reversed(self._mark(text)[2])
            if role == "user":
                events = list(self._of_message(text, named))
                columns = {key[1] for key, _ in events if key[0] == "asked"}  # what they were asked for before is over
                wishes = {key: wish for key, wish in wishes.items() if key[0] not in _ASKED or key[1] not in columns}
                # The limits in years of one message count together.
                together = {key for key, _ in events if key[0] == "year"} - wishes.keys()
                for key, wish in events:
                    over = {own for own in wishes if own == key or (own not in together and _is_over(own, key, wish))}
                    wishes = {own: old for own, old in wishes.items() if own not in over}
                    if wish is not None:
                        wishes[key] = wish
        return list(wishes.values())[-_MOST_WISHES:]

    def still_chosen(self, choices: Mapping[str, bool], message: Mapping[str, str]) -> dict[str, bool]:
        """Return the choices (see `apply`) that hold after a later message of the user: not those that it states."""
        stated = {wish.text for wish in self.read([message])} if choices else set()
        return {text: is_kept for text, is_kept in choices.items() if text not in stated}

    def _read_values(self) -> None:
        own = [short_values(item) for item in self.catalog.items]
        for name in dict.fromkeys(name for item in self.catalog.items for name in item.metadata):
            texts = [item.metadata.get(name, "") for item in self.catalog.items]
            numbers = [re.fullmatch(r"(\d+(?:\.\d+)?)(?: ?m(?:in(?:utes)?)?)?", text.strip()) for text in texts]
            filled = sum(map(bool, texts))
            if filled and sum(map(bool, numbers)) >= _SHORT * filled:
                self._columns[fold(name)] = np.array([float(match[1]) if match else np.nan for match in numbers])
            elif filled and sum(name in values for values in own) >= _SHORT * filled:
                self._add_column(name, [values.get(name, []) for values in own])

    def _add_column(self, name: str, values: Sequence[Sequence[str]]) -> None:
        self._names.add(_stem(fold(name)))
        is_name = _stem(fold(name)) in _PEOPLE
        for index, texts in enumerate(values):
            for text in texts:
                key = _words_of(text)
                self._spelt.setdefault(key, _Value(text, [], name)).items.append(index)
                if len(key) > 1:
                    last = self._surnames if is_name else self._heads
                    last[key[-1]] = key if last.get(key[-1], key) == key else None
        self._spelt.pop((), None)

    def _add_spellings(self) -> None:
        is_told = False
        for line in filter(None, grammar.ALSO.replace("\n", "|").split("|")):
            forms = [_words_of(form) for form in line.split()]
            is_told = is_told or line.startswith(grammar.FIRST_ASKED)
            name = line.split()[0].replace("-", " ")
            known = next((self._spelt[form] for form in forms if form in self._spelt), None)
            known = known or _Value(name.capitalize() if is_told else name, [], is_told=is_told)
            for form in forms:
                if len("".join(form)) > grammar.CODE:
                    self._spelt.setdefault(form, known)

    def _of_message(self, text: str, named: list[_Value]) -> Iterator[tuple[Key, Wish | None]]:
        """Yield the key of what each stretch of a message asks, and the wish; None takes an earlier wish back.

        The message's titles are added to those that were `named` before.
        """
        marked, values, titles = self._mark(text)
        if not named and (that := grammar.THAT_ONE.search(marked)):
            yield ("unknown", that.group()), Wish(that.group(), "unknown")
        named += reversed(titles)  # they were marked from the last one
        if grammar.RESET.search(marked):
            yield ("reset",), None
        if grammar.RESET_ALL.search(marked):
            yield ("reset", "all"), None
        for part in grammar.PARTS.split(marked):
            yield from self._of_values(part, values, titles)
            yield from self._of_same(part, named)
            yield from self._of_comparisons(part, titles, named)
            yield from self._of_thirds(part)
            yield from self._of_unknown(part)
            if "<y" in part:
                yield from self._of_years(part)
            if "<n" in part:
                yield from self._of_amounts(part)
            yield from ((("free", limit), None) for limit, pattern in grammar.FREE if pattern.search(part))
        names = grammar.NAMED.findall(text)
        known = self.mentions.titles([text]) if names else []
        for name in names:
            if "<" not in self._mark(name)[0] and not any(title in name for title in known):
                yield ("unknown", name), Wish(name.strip(), "unknown")

    def _of_values(
        self, part: str, values: Sequence[_Value], titles: Sequence[_Value]
    ) -> Iterator[tuple[Key, Wish | None]]:
        for found in grammar.LIST.finditer(part):
            start, end = found.span()
            left = part[:start] if start < _NEAR else f"x {part[start - _NEAR : start]}"
            kind = _kind(left, part[end : end + _NEAR])
            more = grammar.MORE.match(part, end) if kind == "asked" else None
            listed = part[start : more.end() if more else end]
            if kind is None or (kind == "only" and grammar.MY_ONLY.match(part[end:])):
                continue
            things = [
                [
                    (values if mark == "v" else titles)[int(number)]
                    for mark, number in re.findall(r"<([vt])(\d+)>", thing)
                ]
                for thing in re.findall(grammar.THING, listed)
            ]
            if kind == "only":
                known = [has for thing in things if (has := self._having(thing)) is not None]
                if len(known) == len(things) and "t" not in listed[1]:
                    text = " or ".join(" ".join(value.text for value in thing) for thing in things)
                    yield ("only", things[0][0].column), Wish(f"only {text}", "kept", np.logical_or.reduce(known))
                continue
            is_either = grammar.EITHER.search(listed)
            is_modified = kind == "asked" and not is_either and not more and bool(grammar.MODIFIED.search(left))
            for thing in things:
                key, has = ("against", *sorted(fold(value.text) for value in thing)), self._having(thing)
                name = " ".join(value.text for value in thing)
                text = f"{'not' if thing[0] in titles else 'no'} {name}"
                if kind in ("again", "asked"):
                    for value in thing:
                        yield ("against", fold(value.text)), None
                        if kind == "again":
                            yield ("only", value.column), None
                        if kind == "asked" and value in titles:
                            yield ("named", fold(value.text)), Wish(value.text, "named")
                        elif kind == "asked" and value.items:
                            asked = ("asked", value.column, fold(value.text))
                            state: State = "kept" if is_modified else "preferred"
                            yield asked, Wish(value.text, state, self._having([value]), is_soft=is_modified)
                    if has is None:
                        yield key, None
                        if any(value.is_told for value in thing):
                            yield ("asked", name), Wish(next(value.text for value in thing if value.is_told), "unknown")
                elif has is None:
                    yield key, Wish(text, "unknown")
                else:
                    against = frozenset(key[1:])
                    yield key, Wish(text, "kept" if kind == "against" else "unsure", ~has, against)

    def _having(self, thing: Sequence[_Value]) -> np.ndarray | None:
        """Return which items have all the values; None where one is unknown. Shape: (C,)."""
        if not all(value.items for value in thing):
            return None
        has = np.ones(len(self.catalog), bool)
        for value in thing:
            own = np.zeros(len(self.catalog), bool)
            own[value.items] = True
            has &= own
        return has

    def _of_unknown(self, part: str) -> Iterator[tuple[Key, Wish | None]]:
        for found in grammar.UNKNOWN.finditer(part):
            for thing in grammar.UNKNOWN_AND.split(found["many"] or found["one"]):
                key = self._heads.get(_stem(thing))
                if key is None:
                    yield ("unknown", thing), Wish(f"no {thing}", "unknown")
                else:  # the only value with this head, such as "talking animals" for "animals"
                    value = self._spelt[key]
                    fits, against = np.ones(len(self.catalog), bool), frozenset({fold(value.text)})
                    fits[value.items] = False
                    yield ("against", *against), Wish(f"no {value.text}", "unsure", fits, against)
        for found in grammar.MOODS.finditer(part):
            left = _left(part, found.start()).rpartition(",")[2]
            if not grammar.NO_MOOD.search(left):
                start = found.start(found.lastgroup or 0)
                is_denied = _DENIED.search(left + part[found.start() : start])
                for mood in grammar.MOOD.findall(part[start : found.end()]):
                    yield ("unknown", mood), Wish(f"not {mood}" if is_denied else mood, "unknown")

    def _of_years(self, part: str) -> Iterator[tuple[Key, Wish | None]]:
        taken: list[tuple[int, int]] = []
        for kind, pattern in grammar.LIMITS:
            for found in re.finditer(pattern, part):
                groups = found.groupdict()
                last = groups["b"] or groups.get("c") or ""
                span = (found.start(), found.end())
                if any(start < span[1] and span[0] < end for start, end in taken):
                    continue
                taken.append(span)
                clause = _clause(part, *span)
                is_excluded = kind == "in" and grammar.AGAINST.search(clause.partition(found.group())[0])
                if is_excluded or grammar.NO_LIMIT.search(clause):
                    continue  # it belongs to what is excluded, or is no year of an item
                low, high = _span_of(groups.get("a") or last)[0], _span_of(last)[1]
                if groups.get("nor"):
                    kind = {"before": "since", "after": "until", "since": "before"}[kind]
                side, text, fits = self._limit(kind, _span_of(last)[0] if kind != "in" else low, high)
                doubtful = bool(grammar.LOOSE.search(clause))
                if np.isnan(self._years).all():
                    yield ("year", *side), Wish(text, "unknown")
                else:
                    is_plain = kind != "in" or groups.get("a") or _is_attribute(part, *span)
                    state: State = "kept" if is_plain and not doubtful else "preferred"
                    is_loose = state == "preferred" and side[0] in ("low", "high")
                    yield ("year", *(("loose",) if is_loose else side)), Wish(text, state, fits)

    def _limit(self, kind: str, low: int, high: int) -> tuple[Key, str, np.ndarray]:
        years = self._years
        if kind in _SIDES:
            side, compare, place = _SIDES[kind]
            year = (low, high)[place]
            return (side,), f"{kind} {year}", compare(years, year)
        inside = (years >= low) & (years <= high)
        text = str(low) if low == high else f"{low} to {high}"
        return (("not", text), f"not {text}", ~inside) if kind == "not" else (("in",), text, inside)

    def _of_amounts(self, part: str) -> Iterator[tuple[Key, Wish | None]]:
        for kind, pattern in grammar.AMOUNTS:
            for found in re.finditer(pattern, part):
                if grammar.NO_AMOUNT.search(_clause(part, *found.span())):
                    continue
                number, unit = (found["n"] or found["m"])[2:-1].split(":")
                own = ("least" if kind == "most" else "most") if found["nor"] else kind
                is_least, amount = own == "least", float(number)
                text = f"{'at least' if is_least else 'at most'} {amount:.10g} {_units(unit)}"
                column = self._column(unit)
                if column is None:
                    yield ("amount", unit, own), Wish(text, "unknown")
                    continue
                fits = column >= amount if is_least else column <= amount
                if grammar.LOOSE.search(_clause(part, *found.span())):
                    yield ("amount", unit, "loose"), Wish(text, "preferred", fits)
                else:
                    yield ("amount", unit, own), Wish(text, "kept", fits)

    def _of_thirds(self, part: str) -> Iterator[tuple[Key, Wish | None]]:
        for found in grammar.THIRDS.finditer(part):
            is_denied = not found["nor"] and _DENIED.search(_left(part, found.start()))
            if not is_denied and not grammar.NO_LIMIT.search(_clause(part, *found.span())):
                yield self._third(found["word"], bool(found["nor"]))

    def _third(self, word: str, is_denied: bool) -> tuple[Key, Wish]:
        """Return the loose wish for a third of the catalog, such as the shortest; if denied, for the two others."""
        word = word if word in ("shorter", "longer", "older") else grammar.COMPARED.get(word, "newer")
        unit = "min" if self._column("min") is not None else "page"
        is_time, is_least = word in ("older", "newer"), (word in ("newer", "longer")) != is_denied
        values = self._years if is_time else self._column(unit)
        if values is None or np.isnan(values).all():
            return ("unknown", word), Wish(word, "unknown")
        share = 2 / 3 if is_least != is_denied else 1 / 3
        limit = np.nanquantile(values, share, method="higher" if is_least else "lower")
        fits = values >= limit if is_least else values <= limit
        if is_time:
            return ("year", "loose"), Wish(f"{'since' if is_least else 'until'} {limit:.0f}", "preferred", fits)
        text = f"{'at least' if is_least else 'at most'} {limit:.10g} {_units(unit)}"
        return ("amount", unit, "loose"), Wish(text, "preferred", fits)

    def _of_same(self, part: str, named: Sequence[_Value]) -> Iterator[tuple[Key, Wish | None]]:
        for found in grammar.SAME.finditer(part):
            word = _stem(found["column"] or found["person"])
            names = _ACTORS if word in _ACTORS else {word}
            if not names & (_PEOPLE | self._names):
                continue  # as in "we like the same movies"
            values = [
                self._spelt[key]
                for index in (named[-1].items[:1] if named else ())
                for column, texts in short_values(self.catalog.items[index]).items()
                for key in map(_words_of, texts)
                if _stem(fold(column)) in names and key in self._spelt
            ]
            if not values:
                yield ("unknown", word), Wish(f"same {word}", "unknown")
                continue
            text, fits = " or ".join(value.text for value in values), np.zeros(len(self.catalog), bool)
            fits[[index for value in values for index in value.items]] = True
            if grammar.AGAINST.search(_clause(part, *found.span())):
                against = frozenset(fold(value.text) for value in values)
                yield ("against", *sorted(against)), Wish(f"no {text}", "kept", ~fits, against)
            else:
                yield ("asked", values[0].column, "same"), Wish(text, "preferred", fits)

    def _of_comparisons(
        self, part: str, titles: Sequence[_Value], named: Sequence[_Value]
    ) -> Iterator[tuple[Key, Wish | None]]:
        for found in grammar.RELATIVE.finditer(part):
            word, than = found["word"], found["than"] or (found["but"] or "").partition(",")[0].partition(" ")[0]
            if not than and found["is_wish"] is None:
                continue  # as in "older films are good"
            others = [titles[int(than[2:-1])]] if than.startswith("<t") else list(named[-1:])
            is_time = word in ("newer", "older", "more recent")
            values = self._years if is_time else self._column("min")
            known = np.unique(values[others[0].items]) if values is not None and others else np.empty(0)
            if values is None or len(known) != 1 or np.isnan(known[0]):
                yield (("unknown", word), Wish(word, "unknown")) if than else self._third(word, False)
                continue
            is_more = word in ("newer", "more recent", "longer")
            fits = values > known[0] if is_more else values < known[0]
            if found["nor"]:
                is_more, fits = not is_more, ~fits & ~np.isnan(values)
            text = f"{'not ' if found['nor'] else ''}{word} than {others[0].text}"
            key = ("year",) if is_time else ("amount", "min")
            side = ("low" if is_more else "high") if is_time else "least" if is_more else "most"
            state: State = "kept" if than else "preferred"
            yield (*key, side if than else "loose"), Wish(text, state, fits)

    def _column(self, unit: str) -> np.ndarray | None:
        names = [name for name in self._columns if name in _MINUTES or name.split("_")[0] in _MINUTES]
        names = names if unit == "min" else [name for name in self._columns if _stem(name) == unit]
        return self._columns[names[0]] if names else None

    def _mark(self, text: str) -> tuple[str, list[_Value], list[_Value]]:
        """Return the text, folded and with marks, and the values and titles that the marks number."""
        titles: list[_Value] = []
        text = grammar.AGE.sub("only kids", re.sub(r"[<>\ue000-\uf8ff]", " ", normalise_unicode("NFC", text)))
        places = {(start, end): title for start, end, title in self.mentions.places(text)}
        for (start, end), title in sorted(places.items(), reverse=True):
            text = f"{text[:start]}{chr(0xE000 + len(titles))}{text[end:]}"
            titles.append(_Value(title, self.catalog.indices_of_title(title)))
        text = re.sub(r"\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”", " \uf8ff ", text)
        text = grammar.TITLE_CASE.sub("\uf8ff", text).replace("’", "'")
        text = grammar.CENTURY.sub("since 2000", re.sub(r"'(?=\d0s\b)", "", text))
        text = re.sub(r"\(\d{4}\)", "", text)  # of a title that the catalog lacks
        text = re.sub(rf"(?<=s)'(?= {grammar.NOUN}\b)", "", text)  # "kids' movies"
        values: list[_Value] = []
        words = list(re.finditer(r"[^\W_]+(?:'[^\W_]+)*", text))
        folded = [without_accents(word.group()).casefold() for word in words]
        stems = [_stem(word) for word in folded]
        pieces, end, at = [], 0, 0
        while at < len(words):
            size, value = self._value_at(words, stems, at, text)
            pieces.append(text[end : words[at].start()])
            if value is not None:
                pieces.append(f"<v{len(values)}>")
                values.append(value)
            else:
                pieces.append(_year_mark(folded[at]) or folded[at])
            at, end = at + size, words[at + size - 1].end()
        marked = "".join([*pieces, text[end:]])
        marked = re.sub("[\ue000-\uf8fe]", lambda mark: f"<t{ord(mark.group()) - 0xE000}>", marked)
        marked = re.sub(r"[ \t]+", " ", marked.replace("\uf8ff", "<q>"))
        return grammar.AMOUNT.sub(self._amount_mark, marked), values, titles

    def _value_at(self, words: list[re.Match[str]], stems: list[str], at: int, text: str) -> tuple[int, _Value | None]:
        for size in self._sizes.get(stems[at], ()):
            key = tuple(stems[at : at + size])
            value, pairs = self._spelt.get(key), pairwise(words[at : at + len(key)])
            if value is not None and all(text[one.end() : two.start()] in (" ", "-", "'") for one, two in pairs):
                return len(key), value
        name = self._surnames.get(stems[at])
        is_name = words[at].group()[0].isupper() and at > 0 and text[words[at - 1].end() : words[at].start()] == " "
        is_name = is_name and not grammar.NO_NAME.search(f"{words[at - 1].group()}{text[words[at].end() :][:20]}")
        return 1, self._spelt[name] if name is not None and is_name else None

    def _amount_mark(self, found: re.Match[str]) -> str:
        written = found["n"].replace(",", "")
        number = float(grammar.NUMBERS.get(written) or written) + 0.5 * bool(found["half"] or found["later"])
        unit = _stem(found["unit"])
        if unit in ("h", "hr", "hour"):
            return f"<n{60 * number + float(found['m'] or 0):.10g}:min>"
        if found["m"] or (
            unit not in ("m", "min", "minute") and (found["n"] in grammar.NUMBERS or self._column(unit) is None)
        ):
            return found.group()
        return f"<n{number:.10g}:{'min' if unit in ('m', 'min', 'minute') else unit}>"


def _last_words(messages: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return the roles and texts of the last messages, `LONGEST_READ` characters in all."""
    found, room = [], LONGEST_READ
    for message in reversed(messages):
        text = message["content"][-room:]
        found.append((message["role"], text))
        room -= len(text)
        if room <= 0:
            break
    return found[::-1]


def _is_over(own: Key, key: Key, wish: Wish | None) -> bool:
    """Return whether an earlier wish, of the key `own`, is over by what is said later, of another key."""
    match key:
        case ("reset", *everything):
            return bool(everything) or own[0] != "against"
        case ("free", limit):
            return own[0] == limit
        case ("year", "in") if wish is not None and wish.state == "kept":
            return own[0] == "year"
        case ("year", side) if side != "not" and own in (("year", "in"), ("year", "loose")):
            return True
        case ("against", *values) if wish is not None and wish.state == "kept" and own[0] in ("asked", "named"):
            return own[-1] in values
    return False


def _kind(left: str, right: str) -> str | None:
    """Return what the words around a list decide: against, unsure, again, only, asked; None where nothing does."""
    behind = next((kind for kind, pattern in grammar.BEHIND if pattern.match(right)), None)
    matches = ((kind, pattern.search(left)) for kind, pattern in grammar.BEFORE)
    kind, found = next(((kind, found) for kind, found in matches if found), ("", None))
    before = left[: found.start()] if found else ""
    if kind == "against" and found is not None:
        is_contrast = found["cue"].startswith("not") and before.endswith("but ") and grammar.AGAINST.search(before)
        is_besides = grammar.BESIDES.match(found["cue"]) and grammar.ALSO_LIKED.match(right)
        is_question = before.strip() in ("who", "but who")  # "who doesn't love a comedy"
        if grammar.TAKEN_BACK.match(right) or is_contrast or is_besides or is_question:
            return None
    for start, end in grammar.WELCOME:
        if end.match(right) and (welcome := start.search(left)) and not _DENIED.search(left[: welcome.start() + 1]):
            return "against" if welcome.groupdict().get("not") else "asked"
    if behind:
        return None if kind == "against" else behind
    if found is None or kind in ("again", "unsure"):
        return kind or None
    if grammar.TURNED.search(before) or (kind == "asked" and _DENIED.search(left)):
        return None
    if kind == "asked" and grammar.HABIT.match(found["cue"]) and re.search(r" (?:but|so) ", right):
        return None  # "I usually watch horror, but tonight"
    is_attached = grammar.ATTACHED.match(right)
    if grammar.END.match(right) or (kind in ("asked", "only") and is_attached):
        return kind
    if kind == "asked" and grammar.ASKED_END.match(right):
        return kind
    return "unsure" if kind == "against" and is_attached else None


def _clause(part: str, start: int, end: int) -> str:
    """Return what stands between commas around a stretch, and near it."""
    return _left(part, start).rpartition(",")[2] + part[start:end] + part[end : end + _NEAR].partition(",")[0]


def _left(part: str, start: int) -> str:
    return part[max(0, start - _NEAR) : start]


def _is_attribute(part: str, start: int, end: int) -> bool:
    """Return whether years belong to a noun or a value, as in "a comedy from the 90s", or are all that is wanted."""
    return bool(
        re.search(rf"(?:<v\d+>|\b{grammar.NOUN}|\b(?:some|any)thing)\s*$", _left(part, start))
        or re.match(rf"(?:<v\d+>|{grammar.NOUN}\b)", part[start:])
        or re.search(rf"<y\d+-\d+> (?:<v\d+>|{grammar.NOUN}\b)", part[start : end + 5])
        or re.search(r"\b(?:only|must|has to|have to)\b", _left(part, start) + part[start : end + _NEAR])
    )


def _units(unit: str) -> str:
    return "minutes" if unit == "min" else f"{unit}s"


def _span_of(words: str) -> tuple[int, int]:
    """Return the first and the last year of marked years; of a decade, the early, the middle or the late ones."""
    low, high = map(int, re.findall(r"\d+", words)[-2:])
    for word, first, last in (("early", 0, 3), ("mid", 4, 6), ("late", 7, 9)):
        if high - low == 9 and re.match(rf"(?:the )?{word}\b", words):
            return low + first, low + last
    return low, high


def _year_mark(word: str) -> str | None:
    """Return the mark of a folded word that is a year or a decade, None for another one."""
    if decade := re.fullmatch(r"(1[89]|20)?(\d)0'?s", word):
        first = int(f"{decade[1] or (20 if decade[2] in '012' else 19)}{decade[2]}0")
    elif word in grammar.DECADES:
        first = 1920 + 10 * grammar.DECADES.index(word)
    elif word.isascii() and word.isdecimal() and len(word) == 4 and int(word) in WRITTEN_YEARS:
        return f"<y{word}-{word}>"
    else:
        return None
    return f"<y{first}-{first + 9}>"


def _words_of(text: str) -> Key:
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", without_accents(text).replace("’", "'").casefold())
    return tuple(map(_stem, words))


def _stem(word: str) -> str:
    """Return a folded word without the ending of a plural or a possessive."""
    word = word.removesuffix("'s")
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")) or word == "news":
        return word
    for ending, other in (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"), ("oes", "o"), ("s", "")):
        if word.endswith(ending):
            return word.removesuffix(ending) + other
    return word


def wish_reader(catalog: Catalog) -> WishReader:
    """Return the reader of a catalog, the same for all callers."""
    return catalog.once(WishReader)
