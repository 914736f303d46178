"""What training rows tell, in numbers: who said what, when, and what they liked; read once for all that learns."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, month_of, named_titles, person_key, truth_items
from convrec.data.row_files import chosen_rows, first_of_each, joined

MOST_CONVERSATIONS = 400_000  # the newest ones, which vote and teach the encoder: all of Reddit-v2
_NUMBERS, _MATRICES = ("conversations", "people", "months"), ("liked", "named")


def words_of(row: Row) -> str:
    """Return the text of a conversation without roles and without a system's message, which all conversations share."""
    return "\n".join(message["content"] for message in row["messages"] if message["role"] != "system")


def named_items(row: Row, catalog: Catalog) -> tuple[set[int], set[int]]:
    """Return the catalog items that a row's conversation names as liked, and as disliked.

    Those that are not among the `disliked_titles` count as liked.
    """
    disliked = catalog.indices_of_titles(row.get("disliked_titles") or ())
    return catalog.indices_of_titles(named_titles(row)) - disliked, disliked


def month_number(month: str) -> int:
    """Return a number of a month, as in 2022-03, that rises by 1 from each to the next; 0 of an empty text."""
    return int(month[:4]) * 12 + int(month[5:]) if month else 0


def item_matrix(rows: Iterable[Iterable[int]], num_items: int) -> sparse.csr_array:
    """Return how often each row has an item. Shape: (rows, C), float32, canonical."""
    items, ends = array("i"), array("q", [0])
    for own in rows:
        items.extend(own)
        ends.append(len(items))
    cells = np.ones(len(items), np.float32), np.array(items, np.int32), np.array(ends)
    matrix = sparse.csr_array(cells, shape=(len(ends) - 1, num_items))
    matrix.sum_duplicates()
    return matrix


def most_frequent(counts: np.ndarray, number: int) -> np.ndarray:
    """Return the places of the largest counts above 0, ascending."""
    order = np.argsort(-counts, kind="stable")[:number]
    return np.sort(order[counts[order] > 0])


@dataclass(frozen=True, eq=False)
class Told:
    """What rows tell. Shape: conversations, people and months (n,); liked and named (n, C)."""

    rows: Sequence[Row]
    conversations: np.ndarray  # int64, hashes of the words and the person
    people: np.ndarray  # int64, see `person_key`
    months: np.ndarray  # see `month_number`
    liked: sparse.csr_array  # how often an item is ground truth
    named: sparse.csr_array  # whether the conversation names it as liked
    preferred: dict[int, tuple[str, ...]] = field(default_factory=dict)  # wishes by conversation, once they are read

    @classmethod
    def of(cls, rows: "Sequence[Row] | Told", catalog: Catalog) -> "Told":
        """Return what rows tell."""
        if isinstance(rows, Told):
            return rows
        heard, size = array("q"), len(catalog)

        def items() -> Iterator[list[int]]:  # those that are liked, and those that are named, side by side
            for row in rows:
                person = person_key(row)
                heard.extend((hash((words_of(row), person)), person, month_number(month_of(row))))
                yield truth_items(row, catalog) + [size + item for item in named_items(row, catalog)[0]]

        both = item_matrix(items(), 2 * size)
        conversations, people, months = np.array(heard, dtype=np.int64).reshape(-1, 3).T.copy()
        return cls(rows, conversations, people, months.astype(np.int32), both[:, :size], both[:, size:])

    def part(self, chosen: np.ndarray) -> "Told":
        """Return what some of the rows tell. Shape: chosen (n,), booleans."""
        arrays: dict[str, Any] = {name: getattr(self, name)[chosen] for name in (*_NUMBERS, *_MATRICES)}
        return replace(self, rows=chosen_rows(self.rows, chosen), **arrays)

    def __add__(self, other: "Told") -> "Told":
        arrays: dict[str, Any] = {name: np.append(getattr(self, name), getattr(other, name)) for name in _NUMBERS}
        arrays |= {name: sparse.vstack([getattr(self, name), getattr(other, name)], "csr") for name in _MATRICES}
        return replace(self, rows=joined(self.rows, other.rows), **arrays)

    def recent(self, most: int | None = None) -> "Told":
        """Return what the newest distinct conversations tell, at most `MOST_CONVERSATIONS`: by month, then by row."""
        first, most = first_of_each(self.conversations), most or MOST_CONVERSATIONS
        if len(first) <= most:
            return self
        newest = np.lexsort((first, self.months[first]))[-most:]
        return self.part(np.isin(self.conversations, self.conversations[first[newest]]))

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the place of the first row of each conversation, and the conversation of each row, from 0."""
        return first_of_each(self.conversations), pd.factorize(self.conversations)[0]
