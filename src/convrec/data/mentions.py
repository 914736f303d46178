"""Catalog titles that a conversation mentions in free text."""

import re
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

import regex

from convrec.data.catalog import Catalog
from convrec.data.titles import LETTER, WRITTEN_YEAR, fold, normalise_unicode, without_accents
from convrec.data.unspaced import UnspacedTitles, without_runs

_WORD = regex.compile(rf"{LETTER}+(?:['’`]{LETTER}+)*|&")
_YEAR_BEHIND = re.compile(rf"[\"”’'*_」』》〉]*\s?[(\[（]{WRITTEN_YEAR}[)\]）]")
_OPENING = {'"': '"', "“": "”", "‘": "’", "«": "»", "„": "“", "*": "*", "_": "_"}
_OPENING |= {"「": "」", "『": "』", "《": "》", "〈": "〉", "【": "】"}
_SENTENCE_END = ".!?…:;"
_BEFORE_WORDS = ' \t\r\n"“‘(*_'
_LOOK_BACK = 50  # characters before a title, in which its sentence's beginning is looked for
_ARTICLES = {"the", "a", "an"}
_PHRASE = 3  # words: a title of this length is rarely written by chance, so capitals do not matter
# Titles, too: at the beginning of a sentence they are more often the word.
_COMMON = {
    "about", "after", "again", "all", "always", "and", "any", "anything", "as", "at", "away", "back", "because",
    "before", "big", "but", "can", "come", "do", "down", "enough", "ever", "everything", "for", "from", "get",
    "go", "good", "great", "have", "he", "her", "here", "hi", "him", "his", "home", "how", "i", "if", "in",
    "is", "it", "just", "last", "life", "like", "look", "love", "loved", "me", "more", "my", "never", "new", "next",
    "night", "no", "not", "nothing", "now", "of", "off", "oh", "ok", "old", "on", "once", "one", "or", "our",
    "out", "over", "please", "point", "run", "saw", "she", "so", "some", "something", "soon", "still", "thanks",
    "that", "them", "then", "there", "these", "they", "thing", "things", "this", "those", "tonight", "tomorrow",
    "too", "two", "under", "up", "us", "very", "wait", "we", "what", "when", "where", "which", "who", "why",
    "wild", "with", "without", "yes", "yesterday", "you", "your",
}  # fmt: skip


class _Spelling(NamedTuple):
    words: tuple[str, ...]
    capitals: tuple[bool, ...]  # of the words, in the catalog
    title: str


class Mentions:
    """Finds titles in free text: those of the items, and their other titles.

    A title is named where its words stand in a row, the longest title first, and

    - its year, or any, follows in brackets: `heat (1995)`; or
    - it stands alone in quotes or emphasis: `"heat"`; or
    - it has three words or more, whatever its capitals: `the dark knight`; or
    - it is written with the catalog's capitals, a leading article aside: `Heat`, `the Matrix`. A number (`300`) needs
      more than that, and so does a common word (`Her`, `Up`) that begins a sentence; or
    - its script has no spaces between words, and `UnspacedTitles` takes it for a word: `我喜欢花样年华`.

    The work is linear in the text. At each word there is one look-up for each length of the titles that begin with it
    and the next one.
    """

    def __init__(self, catalog: Catalog):
        self._by_words: dict[tuple[str, ...], list[_Spelling]] = {}
        self._sizes: dict[tuple[str, ...], set[int]] = {}  # by the first two words, without a possessive
        titles = list(dict.fromkeys(title for item in catalog.items for title in (item.title, *item.aliases)))
        self._unspaced = UnspacedTitles(titles)
        for title in titles:
            words = _WORD.findall(title)
            if words and without_runs(title) == title:
                plain = tuple(map(_plain, words))
                capitals = (word[0].isupper() and own != "and" for word, own in zip(words, plain, strict=True))
                self._by_words.setdefault(plain, []).append(_Spelling(plain, tuple(capitals), title))
                self._sizes.setdefault(tuple(map(_owner, plain[:2])), set()).add(len(plain))

    def titles(self, texts: Iterable[str]) -> list[str]:
        """Return the titles that the texts name, each once, in order."""
        places = (self.places(normalise_unicode("NFC", text)) for text in texts)
        return list(dict.fromkeys(title for own in places for *_, title in own))

    def of_messages(self, messages: Iterable[Mapping[str, str]]) -> list[str]:
        """Return the titles that a conversation names, sorted; its system messages do not count."""
        return sorted(self.titles(message["content"] for message in messages if message["role"] != "system"))

    def _spellings(self, words: list[str], at: int) -> Iterator[list[_Spelling]]:
        """Yield the spellings of the words from a place on, the longest first; the last may be a possessive besides."""
        first = tuple(map(_owner, words[at : at + 2]))
        sizes = self._sizes.get(first, set()) | self._sizes.get(first[:1], set())
        for size in sorted(sizes, reverse=True):
            own = tuple(words[at : at + size])
            possessed = (*own[:-1], _owner(own[-1]))
            found = [*self._by_words.get(own, ()), *(self._by_words.get(possessed, ()) if possessed != own else ())]
            if found:
                yield found

    def places(self, text: str) -> list[tuple[int, int, str]]:
        """Return the start, the end and the title of each that a text in composed Unicode names, in order."""
        named, others, last = [], [], 0  # the titles of scripts without spaces, and the text between them
        for place in self._unspaced.places(text):
            if place.is_word or _is_marked(text, place.start, place.end):
                named.append((place.start, place.end, place.title))
                others += [text[last : place.start], " " * (place.end - place.start)]
                last = place.end
        found = list(_WORD.finditer(without_runs("".join([*others, text[last:]]))))
        words = [_plain(match.group()) for match in found]
        at = 0
        while at < len(words):
            same: list[_Spelling] = []  # those of the longest title, which several items can share but for its signs
            for spellings in self._spellings(words, at):
                matches = found[at : at + len(spellings[0].words)]
                same = [spelling for spelling in spellings if _is_named(text, matches, spelling)]
                if same:
                    break
            size = len(same[0].words) if same else 1
            start, end = found[at].start(), found[at + size - 1].end()
            named += [(start, end, title) for title in _as_written(same, text, start)]
            at += size
        return sorted(named, key=itemgetter(0))


def _as_written(same: list[_Spelling], text: str, start: int) -> list[str]:
    """Return the titles of spellings of the same words: the one that stands there to the letter, else all."""
    titles = [spelling.title for spelling in same]
    exact = [title for title in titles if len(titles) > 1 and fold(text[start : start + len(title)]) == fold(title)]
    return [max(exact, key=len)] if exact else titles


def _plain(word: str) -> str:
    """Return the form in which words are compared: no case, accents or apostrophe variants; `&` is "and"."""
    return without_accents(word.replace("’", "'").replace("`", "'").replace("&", "and")).casefold()


def _owner(word: str) -> str:
    """Return a word without its possessive, as in "Inception's"."""
    return word.removesuffix("'s")


def _is_named(text: str, matches: list[regex.Match[str]], spelling: _Spelling) -> bool:
    start, end = matches[0].start(), matches[-1].end()
    if "\n" in text[start:end]:
        return False
    if _is_marked(text, start, end) or len(spelling.words) >= _PHRASE:
        return True
    if all(word.isdecimal() for word in spelling.words):
        return False
    if not all(
        match.group()[0].isupper() or not capital or (place == 0 < len(matches) - 1 and spelling.words[0] in _ARTICLES)
        for place, (match, capital) in enumerate(zip(matches, spelling.capitals, strict=True))
    ):
        return False
    return not (_begins_sentence(text, start) and len(matches) == 1 and spelling.words[0] in _COMMON)


def _begins_sentence(text: str, start: int) -> bool:
    before = text[max(0, start - _LOOK_BACK) : start]
    head = before.rstrip(_BEFORE_WORDS)
    return not head or head[-1] in _SENTENCE_END or "\n" in before[len(head) :]


def _is_marked(text: str, start: int, end: int) -> bool:
    """Return whether the text there is marked as a title: by a following year, quotes or emphasis."""
    if _YEAR_BEHIND.match(text, end):
        return True
    return start > 0 and end < len(text) and _OPENING.get(text[start - 1]) == text[end]
