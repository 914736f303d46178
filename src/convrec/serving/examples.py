"""Requests that a user can start with, made from the catalog."""

from collections import Counter

from convrec.data.catalog import Catalog
from convrec.serving.reasons import Reasons, genres_of


def example_requests(catalog: Catalog, reasons: Reasons, noun: str) -> list[str]:
    """Return up to three requests: for two titles, for a genre, and for a genre in a decade.

    Genres are the values of the metadata field `genres` or `genre`; without it, the requests name titles only.
    """
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
