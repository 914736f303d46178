"""Suggestions of catalog titles while a user types one."""

from collections.abc import Iterable

from rapidfuzz import process
from rapidfuzz.distance import OSA

from convrec.data.catalog import Catalog
from convrec.data.titles import fold, title_and_year, without_accents

_LEAST_SIMILARITY = 0.6  # of a title that is suggested for a misspelt one
_MAX_SIMILAR = 3


class TitleSearch:
    """The lines `Title (Year)` of one or more catalogs, in order."""

    def __init__(self, catalogs: Iterable[Catalog]):
        items = {str(item): item.title for catalog in catalogs for item in catalog.items}
        self._lines = {line: _plain(line) for line in items}
        self._titles = {line: _plain(title) for line, title in items.items()}

    def suggestions(self, text: str, limit: int = 8) -> list[str]:
        """Return lines that begin with the text, then lines with a word that does, else lines with a similar title."""
        sought = _plain(text)
        if not sought:
            return []
        first = sorted((line for line, plain in self._lines.items() if plain.startswith(sought)), key=len)
        later = [line for line, plain in self._lines.items() if f" {sought}" in plain and not plain.startswith(sought)]
        if found := [*first, *later][:limit]:
            return found
        title = _plain(title_and_year(text)[0])
        score = OSA.normalized_similarity
        near = process.extract(title, self._titles, scorer=score, score_cutoff=_LEAST_SIMILARITY, limit=_MAX_SIMILAR)
        return [line for _, _, line in near]


def _plain(text: str) -> str:
    return without_accents(fold(text))
