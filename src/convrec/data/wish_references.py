"""What points at a list that was shown, or at the people of a title, such as "the first two" or "the same director"."""

from collections.abc import Sequence
from itertools import takewhile

from convrec.data.catalog import Catalog, short_values
from convrec.data.titles import fold
from convrec.data.wish_marks import MARKS, NUMBERS, PEOPLE, Marker, Token, Value, nouns, stem, words, words_of
from convrec.data.wish_scopes import ARTICLES, REACH

# Before a number of a list that was shown, and behind it.
_COUNTED = {"seen", "number", "not", "like", "and", "or", ",", "into", "except", "liked", "loved", "watched", "no"} | {
    "saw",
    "did",
    "hated",
    "skip",
}
_COUNTED_ON = {"and", "or", "already", "before", "but", "please"}
_TIMES = {"time", "night", "week", "weekend", "month", "year", "day", "half", "thing"}
_OF_A_PERSON = {"his", "hers", "her", "their", "theirs"}
_SAME = {"star": {"star", "actor", "cast"}, "actor": {"star", "actor", "cast"}, "actress": {"star", "actor", "cast"}}


def resolved(marker: Marker, tokens: list[Token], shown: list[Value], named: list[Value]) -> list[Token]:
    """Return the tokens, with values in place of what points at a list that was shown or at people of a title."""
    found, at = list[Token](), 0
    while at < len(tokens):
        size, values, kind = 1, list[Value](), "title"
        is_seen = any(token.cue == "seen" for token in tokens[max(0, at - REACH) : at])
        if is_seen and tokens[at].word in _OF_A_PERSON and (people := list(filter(_is_person, found))):
            found[found.index(people[-1])] = Token("one", "")
            found += [Token("not", "", "cue", "not"), people[-1]]  # "I love Hitchcock, and have seen all of his"
            at += 1
            continue
        if [token.word for token in tokens[at : at + 2]] == ["that", "one"] and "like" in [t.word for t in found[-1:]]:
            size, values = 2, next((token.values for token in reversed(found) if token.kind == "title"), [])
        elif shown:
            size, values = _pointed(tokens[at : at + 6], shown, tokens[at - 1].word if at else "", is_seen)
        names, column = _same(marker.catalog, tokens[at : at + 2], named)
        if names:
            found_in = [value for text in names for value in marker.spelt.get(words_of(text), ())]
            items = [item for value in found_in for item in value.items]
            size, values, kind = 2, [Value(" or ".join(names), items, column)], "value"
        if tokens[at].word in ("after", "before") and tokens[at + 1 : at + 2] and tokens[at + 1].kind == "title":
            year = marker.catalog.items[tokens[at + 1].values[0].items[0]].year
            if year and (at == 0 or tokens[at - 1].word in nouns() | ARTICLES | {"made", "released", "from"}):
                operator = "above" if tokens[at].word == "after" else "below"
                found.append(Token(tokens[at].word, "", "limit", "", [], (year, year), "year", operator))
                at += 2
                continue
        said = " ".join(token.said for token in tokens[at : at + size])
        is_them = tokens[at].cue == "behind.seen" and tokens[at].word.endswith(("them", "those"))
        clause = takewhile(lambda token: token.kind != "sign", reversed(found))
        if is_them and shown and not any(token.kind in MARKS for token in clause):
            found.append(Token("seen", "seen", "cue", "seen"))
            values, kind = shown, "title"
        is_list = values == shown and len(shown) > 1 and "like" not in [token.word for token in found[-3:]]
        found.append(Token(said, said, kind, "", values, unit="list" * is_list) if values else tokens[at])
        at += size if values else 1
    return found


def _is_person(token: Token) -> bool:
    return token.kind == "value" and stem(fold(token.values[0].column)) in PEOPLE


def _is_time(behind: Sequence[str]) -> bool:
    """Return whether what stands behind an ordinal is no item, as in "the last three weeks"."""
    return bool(behind) and stem(behind[0]) in _TIMES


def _same(catalog: Catalog, tokens: list[Token], named: list[Value]) -> tuple[list[str], str]:
    """Return the people of the title that was named last, as in "the same director", and their column."""
    if len(tokens) < 2 or tokens[0].word not in ("same", "that") or not named or not named[-1].items:
        return [], ""
    column, own = stem(tokens[1].word), short_values(catalog.items[named[-1].items[0]])
    names = _SAME.get(column, {column})
    return [text for name, texts in own.items() if stem(fold(name)) in names for text in texts], column


def _pointed(tokens: list[Token], shown: list[Value], before: str, is_seen: bool) -> tuple[int, list[Value]]:
    """Return how many tokens point at items that were shown, such as "the first two", and these items.

    What was seen of them points at them as well, as in "I have seen the French ones"; "no French ones" is a value.
    """
    said, names = [token.word for token in tokens], words()["ordinals"].split()
    place = {name: number % 10 for number, name in enumerate(names)}
    written = {name: int(n) for name, n in NUMBERS.items() if name not in ("a", "an", "hour")}
    counted = written | {str(number): number for number in range(1, len(shown) + 1)}
    match said:
        case [_, "one" | "ones", *_] if tokens[0].kind == "value" and (said[1] == "one" or is_seen):
            items = {item for value in tokens[0].values for item in value.items}
            return 2, [value for value in shown if items & set(value.items)]
        case ["number", number, *_] if 0 < counted.get(number, 0) <= len(shown):
            return 2, [shown[counted[number] - 1]]
        case ["the", "top", "one", *_]:
            return 3, shown[:1]
        case [nth, "and" | "or", other, *_] if nth in place and other in place:
            return 3, [shown[at] for at in (place[nth], place[other]) if at < len(shown)]
        case [nth, "one" | "is" | "was" as behind, *_] if nth in place and before not in ("the", "my", "your", "at"):
            return 2 if behind == "one" else 1, shown[place[nth] :][:1]
        case [number, *rest] if (
            number in counted
            and number.isdecimal()
            and before.split()[-1:]
            and before.split()[-1] in _COUNTED
            and (not rest or rest[0] in _COUNTED_ON or not rest[0].isalnum())
        ):
            return 1, [shown[counted[number] - 1]]
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
        case ["the", nth, *rest] if (nth in place or nth == "last") and (_is_time(rest) or _is_time(rest[1:])):
            return 1, []
        case ["the", "last" | "first" as end, number, *_] if counted.get(number, 0) > 1:
            return 3, shown[-counted[number] :] if end == "last" else shown[: counted[number]]
        case ["the", nth, "last", *_] if nth in place:
            return 3, shown[-place[nth] - 1 :][:1]
        case ["the", nth, "and" | "or", other, *_] if nth in place and other in place:
            return 4, [shown[at] for at in (place[nth], place[other]) if at < len(shown)]
        case ["the", nth, *rest] if nth in place or nth == "last":
            return 3 if rest and rest[0] in nouns() else 2, shown[-1:] if nth == "last" else shown[place[nth] :][:1]
    return 1, []
