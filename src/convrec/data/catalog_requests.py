"""Requests that the catalog answers: a few values of an item, among words that ask for nothing, and the items that fit.

Conversations of training name few of the catalog's values, and in few ways. From these requests a model learns what
each value means, in all words by which wishes are read.
"""

from typing import NamedTuple

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.wish_marks import plain_words
from convrec.data.wish_reader import wish_reader

PER_LIST = 0.5  # requests that SFT learns, for each list of a conversation
_VALUES = (0.4, 0.4, 0.2)  # shares of the requests with one value, two and three
_WITH_PLAIN, _MOST_PLAIN = 0.7, 11  # share of the requests that may have plain words, and of how many
_MOST_ITEMS = 100


class Request(NamedTuple):
    """The words of a request, and the catalog indices of at most 100 items, drawn at random, that fit it."""

    words: str
    items: list[int]


class _Value(NamedTuple):
    forms: list[str]
    items: frozenset[int]


def catalog_requests(catalog: Catalog, number: int, seed: int) -> list[Request]:
    """Return at most `number` requests, each about an item, all items alike: one to three values of different columns.

    A decade is a value, too. Items without any get no request.
    """
    known, plain, rng = catalog.once(_known), sorted(plain_words()), np.random.default_rng(seed)
    found = []
    for values in (known[index] for index in rng.integers(len(known), size=number).tolist()):
        columns = rng.permutation(sorted(values))[: 1 + rng.choice(len(_VALUES), p=_VALUES)]
        asked = [values[column][rng.integers(len(values[column]))] for column in columns]
        if asked:
            words = [value.forms[rng.integers(len(value.forms))] for value in asked]
            for _ in range(int(rng.integers(_MOST_PLAIN + 1)) if rng.random() < _WITH_PLAIN else 0):
                words.insert(int(rng.integers(len(words) + 1)), plain[rng.integers(len(plain))])
            fewest, *others = sorted((value.items for value in asked), key=len)
            fits = [item for item in sorted(fewest) if all(item in items for items in others)]
            found.append(Request(" ".join(words), sorted(rng.permutation(fits)[:_MOST_ITEMS].tolist())))
    return found


def _known(catalog: Catalog) -> list[dict[str, list[_Value]]]:
    """Return the values of each item by column: the forms that are read as it, and the items that have it."""
    values: dict[tuple[str, str], _Value] = {}
    for key, own in wish_reader(catalog).spelt.items():
        for one in own:
            value = values.setdefault((one.column, one.text), _Value([one.text], frozenset(one.items)))
            value.forms.append(" ".join(key))
    decades: dict[int, list[int]] = {}
    for index, item in enumerate(catalog.items):
        if item.year is not None:
            decades.setdefault(item.year // 10 * 10, []).append(index)
    for year, items in decades.items():
        forms = [f"{year}s", f"{year % 100:02}s"] if year < 2000 else [f"{year}s"]
        values["", forms[0]] = _Value(forms, frozenset(items))
    known: list[dict[str, list[_Value]]] = [{} for _ in catalog.items]
    for (column, _), value in values.items():
        for index in value.items:
            known[index].setdefault(column, []).append(value)
    return known
