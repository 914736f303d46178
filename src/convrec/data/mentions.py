"""Which titles of the catalog a conversation names, as far as free text tells."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from convrec.data.catalog import Catalog

_WORD = re.compile(r"[^\W_]+(?:['’`][^\W_]+)*")
_YEAR_BEHIND = re.compile(r"[\"”’'*_]*\s?[(\[]\d{4}[)\]]")
_OPENING = {'"': '"', "“": "”", "‘": "’", "«": "»", "„": "“", "*": "*", "_": "_"}
_SENTENCE_END = re.compile(r"(?:^|[.!?…:;\n])[\s\"“‘(*_]*$")
_ARTICLES = {"the", "a", "an"}
_PHRASE = 3  # words: a title of so many is hardly written by chance, so that its capitals do not matter
# Titles, too: at the beginning of a sentence they are more often the word.
_COMMON = {
    "about", "after", "again", "all", "always", "and", "any", "anything", "as", "at", "away", "back", "because",
    "before", "big", "but", "can", "come", "do", "down", "enough", "ever", "everything", "for", "from", "get",
    "go", "good", "great", "have", "he", "her", "here", "hi", "him", "his", "home", "how", "i", "if", "in",
    "is", "it", "just", "last", "life", "like", "look", "love", "me", "more", "my", "never", "new", "next",
    "night", "no", "not", "nothing", "now", "of", "off", "oh", "ok", "old", "on", "once", "one", "or", "our",
    "out", "over", "please", "point", "run", "she", "so", "some", "something", "soon", "still", "thanks",
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
      more than that, and so does a common word (`Her`, `Up`) that begins a sentence.
    """

    def __init__(self, catalog: Catalog):
        self._by_first_word: dict[str, list[_Spelling]] = {}
        for item in catalog.items:
            for title in (item.title, *item.aliases):
                words = _WORD.findall(title)
                if words:
                    spelling = _Spelling(tuple(map(_plain, words)), tuple(word[0].isupper() for word in words), title)
                    self._by_first_word.setdefault(spelling.words[0], []).append(spelling)
        for spellings in self._by_first_word.values():
            spellings.sort(key=lambda spelling: -len(spelling.words))

    def titles(self, texts: Iterable[str]) -> list[str]:
        """Return the titles that the texts name, each once, in order."""
        return list(dict.fromkeys(title for text in texts for title in self._titles_of(text)))

    def _titles_of(self, text: str) -> list[str]:
        found = list(_WORD.finditer(text))
        words = [_plain(match.group()) for match in found]
        titles, at = [], 0
        while at < len(words):
            for spelling in self._by_first_word.get(words[at], ()):
                end = at + len(spelling.words)
                if tuple(words[at:end]) == spelling.words and _is_named(text, found[at:end], spelling):
                    titles.append(spelling.title)
                    at = end
                    break
            else:
                at += 1
        return titles


def _plain(word: str) -> str:
    return word.replace("’", "'").replace("`", "'").casefold()


def _is_named(text: str, matches: list[re.Match[str]], spelling: _Spelling) -> bool:
    start, end = matches[0].start(), matches[-1].end()
    if "\n" in text[start:end]:
        return False
    if _YEAR_BEHIND.match(text, end) or _is_quoted(text, start, end) or len(spelling.words) >= _PHRASE:
        return True
    if all(word.isdecimal() for word in spelling.words):
        return False
    if not all(
        match.group()[0].isupper() or not capital or (place == 0 and spelling.words[0] in _ARTICLES)
        for place, (match, capital) in enumerate(zip(matches, spelling.capitals, strict=True))
    ):
        return False
    begins_sentence = _SENTENCE_END.search(text, 0, start) is not None
    return not (begins_sentence and len(matches) == 1 and spelling.words[0] in _COMMON)


def _is_quoted(text: str, start: int, end: int) -> bool:
    return start > 0 and end < len(text) and _OPENING.get(text[start - 1]) == text[end]
