"""Facts for people: why an item may fit a conversation, and requests that a user can start with."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from convrec.data.catalog import Catalog, Item, short_values
from convrec.data.mentions import Mentions
from convrec.data.titles import fold, normalise_unicode
from convrec.data.unspaced import without_runs
from convrec.data.wish_marks import MINUTES, PEOPLE, stem
from convrec.data.wish_reader import WishReader
from convrec.data.wishes import Wish

_SHORT_WORD = 3  # letters; its last s is no plural
_MAX_VALUES = 3  # of one reason
_MAX_NAMED = 2  # named items that an item is compared with
_MAX_PEOPLE = 2  # of a column, in what lets people check an item
_COMMON = 0.2  # share of the items, from which a value that they share with a named item says nothing
_MAX_READ = 10_000  # last characters of what a user wrote, in which shared words and titles are looked for
_UNLABELLED = {"genre", "genres", "keyword", "keywords", "tag", "tags", "theme", "themes"}
_DECADE = re.compile(r"\b(?:(19|20)(\d)0|(\d)0)['’]?s\b")
_THIS_CENTURY = "012"  # "10s" is the 2010s, "90s" the 1990s
_NO_VALUE = re.compile(r"\d|^(?:less|only|not|no) ")  # in a wish that is not for a value
_FEWEST_FITTING = 10  # the items of the catalog that fit an example


def genres_of(item: Item) -> list[str]:
    """Return the item's genres: the short values of its metadata field `genres` or `genre`."""
    values = short_values(item)
    return values.get("genres") or values.get("genre") or []


def facts_of(item: Item) -> str:
    """Return what lets people check an item: its genres, people, length in minutes, country and rating."""
    found = [genres_of(item)]
    for name, own in short_values(item).items():
        if stem(fold(name)) in PEOPLE:
            found.append(own[:_MAX_PEOPLE])
        elif fold(name) in MINUTES and own[0].isdecimal():
            found.append([f"{own[0]} min"])
        elif fold(name) in ("country", "countries", "rating"):
            found.append(own)
    return " · ".join(", ".join(own) for own in found if own)


class Reasons:
    """Finds who liked the items of a catalog, and what they share with the titles and words of a conversation.

    A reason states a fact and no preference.
    """

    def __init__(self, catalog: Catalog, mentions: Mentions):
        self._catalog, self._mentions = catalog, mentions
        counts = Counter(
            (name, value) for item in catalog.items for name, own in short_values(item).items() for value in own
        )
        self._common = {
            pair for pair, number in counts.items() if number > max(_FEWEST_FITTING, _COMMON * len(catalog))
        }

    def named_items(self, texts: Iterable[str]) -> list[Item]:
        """Return the items that the texts name, in order of naming; a title of several items names each."""
        indices = [index for title in self._mentions.titles(texts) for index in self._catalog.indices_of_title(title)]
        return [self._catalog.items[index] for index in dict.fromkeys(indices)]

    def of(
        self,
        items: Sequence[Item],
        messages: Sequence[Mapping[str, str]],
        likers: Mapping[int, int],
        wishes: Iterable[Wish] = (),
    ) -> list[list[str]]:
        """Return the reasons for each item, in sentences without a full stop; none where there is none.

        `likers` says how many people with similar requests liked an item, by its index in the catalog. `wishes` are
        what was read: what they speak against is named by no reason, and a value that they ask for counts as mentioned.
        """
        used = [wish for wish in wishes if wish.state in ("kept", "preferred", "unsure")]
        against = frozenset[str]().union(*(wish.against for wish in used if wish.state != "preferred"))
        asked = [
            (wish.text, wish.fits)
            for wish in used
            if wish.state != "unsure" and wish.fits is not None and not _NO_VALUE.search(wish.text)
        ]
        text = "\n".join(message["content"] for message in messages if message["role"] == "user")[-_MAX_READ:]
        text = normalise_unicode("NFC", text)
        named, words = self.named_items([text]), fold(self._without_titles(text))
        named = [item for item in named if fold(item.title) not in against]
        decades = {_first_year(*match) for match in _DECADE.findall(words)}
        indices = self._catalog.indices_of_lines(map(str, items))
        people = [likers.get(-1 if index is None else index) for index in indices]
        return [
            [
                *_liked(number),
                *_mentioned(
                    item, words, [said for said, fits in asked if index is not None and fits[index]], decades, against
                ),
                *self._shared(item, named, against),
            ]
            for item, index, number in zip(items, indices, people, strict=True)
        ]

    def _without_titles(self, text: str) -> str:
        for start, end, _ in self._mentions.places(text):
            text = text[:start] + " " * (end - start) + text[end:]
        return text

    def _shared(self, item: Item, named: Iterable[Item], against: Collection[str]) -> list[str]:
        own, found = short_values(item), []
        for other in named:
            theirs = short_values(other)
            same = {
                name: [
                    value
                    for value in values
                    if value in theirs.get(name, ())
                    and fold(value) not in against
                    and (fold(name) in _UNLABELLED or not (value.isdecimal() or (name, value) in self._common))
                ]
                for name, values in own.items()
                if other is not item
            }
            if num := sum(map(len, same.values())):
                found.append((-num, f"Like {other}: {', '.join(_field(*pair) for pair in same.items() if pair[1])}"))
        return [text for _, text in sorted(found, key=lambda pair: pair[0])[:_MAX_NAMED]]


class Example(NamedTuple):
    """A request, and what fits it: items with all these genres, of this decade."""

    text: str
    genres: frozenset[str]
    decade: int | None = None

    def fits(self, item: Item) -> bool:
        """Return whether an item fits the request."""
        in_decade = self.decade is None or (item.year or 0) // 10 * 10 == self.decade
        return in_decade and self.genres <= {fold(genre) for genre in genres_of(item)}


# Requests for movies, in the app, the terminal and the documentation. A test asks the packaged model.
EXAMPLES = (
    Example("I loved Toy Story, Finding Nemo and Up. What else would I like?", frozenset({"animation", "family"})),
    Example("A romantic comedy for date night", frozenset({"romance", "comedy"})),
    Example("An action movie from the 80s", frozenset({"action"}), 1980),
    Example("A thriller from the 90s, but no horror. Something French would be nice", frozenset({"thriller"}), 1990),
)


def example_requests(catalog: Catalog, reasons: Reasons, noun: str) -> list[str]:
    """Return up to four requests that the catalog can answer: for movies, those of `EXAMPLES`.

    Otherwise they are for two titles, for a genre, and for a genre in a decade. Genres are the values of the metadata
    field `genres` or `genre`; without it, the requests name titles only.
    """
    if noun == "movies":
        known = [one.text for one in EXAMPLES if sum(map(one.fits, catalog.items)) >= _FEWEST_FITTING]
        if known:
            return known
    genres = Counter(genre for item in catalog.items for genre in genres_of(item))
    common = [genre for genre, _ in genres.most_common(3)]
    typical = sorted(catalog.items, key=lambda item: (sum(genres[genre] for genre in genres_of(item)), item.year or 0))
    titles: list[str] = []
    for item in reversed(typical):
        if len(titles) < 2 and reasons.named_items([f"I loved {item.title}."]) == [item]:
            titles.append(item.title)
    requests = [f"I loved {' and '.join(titles)}. What else would I like?"] if titles else []
    if common:
        requests.append(f"Some {common[-1]} {noun}, please")
        years = Counter(item.year // 10 * 10 for item in catalog.items if item.year and common[0] in genres_of(item))
        if years:
            requests.append(f"I am in the mood for {common[0]} {noun} from the {years.most_common(1)[0][0]}s")
    return requests


def what_is_read(catalog: Catalog, reader: WishReader) -> str:
    """Return a sentence about what is read from messages, with examples of limits that lists keep to."""

    def is_kept(phrase: str) -> bool:
        return any(wish.state == "kept" for wish in reader.read([{"role": "user", "content": phrase}]))

    values: dict[str, Counter[str]] = {}
    for item in catalog.items:
        for name, own in short_values(item).items():
            values.setdefault(name, Counter()).update(own)
    typical = {name: counts.most_common(1)[0][0] for name, counts in values.items()}
    without = {name: f"no {value}" for name, value in typical.items() if is_kept(f"no {value}")}
    columns = [name for name, value in typical.items() if name in without or is_kept(f"at most {value} {name}")]
    years = sorted(item.year for item in catalog.items if item.year is not None)
    limits = [f"before {years[len(years) // 2] // 10 * 10}"] if years else []
    examples = [*list(without.values())[:1], *filter(is_kept, [*limits, "shorter than two hours"])]
    names = ["titles", *(["years"] if years else []), *(name.replace("_", " ") for name in columns)]
    limits = [f", and keep to limits such as {_all_of(f'“{one}”' for one in examples)}"] if examples else [""]
    return f"I read {_all_of(names)}{limits[0]}."


def _all_of(texts: Iterable[str]) -> str:
    *more, last = texts
    return " and ".join(filter(None, [", ".join(more), last]))


def _first_year(century: str, digit: str, short: str) -> int:
    decade = digit or short
    return int(f"{century or ('20' if decade in _THIS_CENTURY else '19')}{decade}0")


def _liked(number: int | None) -> list[str]:
    return [] if number is None else [f"Liked by {number:,} people who asked for something like this"]


def _mentioned(item: Item, words: str, asked: Sequence[str], decades: set[int], against: Collection[str]) -> list[str]:
    values = [value for own in short_values(item).values() for value in own if fold(value) not in against]
    values = [value for value in values if not value.isdecimal() and _occurs(value, words)]
    values += [text for text in asked if fold(text) not in map(fold, values) and fold(text) not in against]
    if item.year is not None and item.year // 10 * 10 in decades:
        values.append(f"the {item.year // 10 * 10}s")
    return [f"You mentioned {_joined(dict.fromkeys(values))}"] if values else []


def _occurs(value: str, words: str) -> bool:
    """Return whether a value stands in the folded words, also in the plural or singular."""
    folded = fold(value)
    if without_runs(folded) != folded:  # of a script without spaces between words
        return folded in words
    stem = folded.removesuffix("s") if len(folded) > _SHORT_WORD else folded
    return stem in words and re.search(rf"(?<!\w){re.escape(stem)}(?:e?s)?(?!\w)", words) is not None


def _field(name: str, values: Sequence[str]) -> str:
    text = _joined(values)
    return text if fold(name) in _UNLABELLED else f"{name} {text}"


def _joined(values: Iterable[str]) -> str:
    return ", ".join(list(values)[:_MAX_VALUES])
