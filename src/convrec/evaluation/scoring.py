"""From written lists to a table of scores, one row for each test row."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import YEAR_TOLERANCE, Catalog, Entry
from convrec.data.conversations import truths
from convrec.data.titles import fold
from convrec.evaluation.metrics import hit_rate, ndcg, recall, reciprocal_rank
from convrec.matching import Protocol, Truth, judge
from convrec.parsing import parse_list


class WrittenList(NamedTuple):
    """A list as it was parsed; `exact` tells whether each line is a catalog line to the letter."""

    entries: list[Entry | None]
    exact: bool


class Quality(NamedTuple):
    """What one list looks like, whatever the ground truth.

    `in_catalog`: share of its lines that name a catalog item; `format`: 1 where it has exactly N lines, each of
    them a catalog line to the letter; `duplicates` and `seen`: share of its lines that repeat one, or name a seen
    title; `length`: its lines. An empty list has `in_catalog` 0. Blank lines are no lines, but for `format`.
    """

    in_catalog: float
    format: float
    duplicates: float
    seen: float
    length: float


class RowScore(NamedTuple):
    """The relevance of one row's ranks, a byte each, the size of its ground truth, and the quality of its list."""

    hits: bytes
    num_truths: int
    quality: Quality


def read_list(text: str, catalog: Catalog, tolerance: int = YEAR_TOLERANCE) -> WrittenList:
    """Return a written list, one entry a line (see `parsing.parse_list`)."""
    clean = catalog.entries_of_lines(text.split("\n"))
    return WrittenList(clean, True) if all(clean) else WrittenList(parse_list(text, catalog, tolerance), False)


def _quality(
    written: WrittenList, seen_titles: Sequence[str], seen: AbstractSet[int], catalog: Catalog, num_ranks: int
) -> Quality:
    entries = [entry for entry in written.entries if entry is not None]
    items = [entry.index for entry in entries]
    distinct, num_seen, size = len(set(items)), sum(map(seen.__contains__, items)), len(entries)
    num_items = size - items.count(None)
    if num_items < size:
        others = [(fold(entry.title), entry.year) for entry in entries if entry.index is None]
        folded = {fold(title) for title in seen_titles}
        distinct += len(set(others)) - 1  # None was counted as one
        num_seen += sum(title in folded for title, _ in others)
    return Quality(
        num_items / max(1, size),
        float(written.exact and size == num_ranks),
        (size - distinct) / max(1, size),
        num_seen / max(1, size),
        float(size),
    )


def list_quality(text: str, seen_titles: Sequence[str], catalog: Catalog, num_ranks: int) -> dict[str, float]:
    """Return the `Quality` of one list by name."""
    seen = catalog.indices_of_titles(seen_titles)
    return _quality(read_list(text, catalog), seen_titles, seen, catalog, num_ranks)._asdict()


def score_row(
    written: WrittenList,
    groundtruth: Sequence[Truth | int],
    seen_titles: Sequence[str],
    catalog: Catalog,
    num_ranks: int,
    protocol: Protocol = "evaluation",
    tolerance: int = YEAR_TOLERANCE,
    seen_items: AbstractSet[int] = frozenset(),
) -> RowScore:
    """Return what one list is worth to one row; `seen_items` are seen beside those of the titles."""
    seen = catalog.indices_of_titles(seen_titles) | seen_items
    hits = judge(written.entries, groundtruth, seen, catalog, num_ranks, protocol, tolerance)
    return RowScore(bytes(hits), len(groundtruth), _quality(written, seen_titles, seen, catalog, num_ranks))


def score_table(prompt_ids: Sequence[str | int], scores: Sequence[RowScore], cutoffs: Sequence[int]) -> pd.DataFrame:
    """Return one row a row score.

    Columns: prompt_id; recall_at_K, ndcg_at_K and hit_rate_at_K for each cutoff; mrr, over all N ranks; those of
    `Quality`.
    """
    hits = np.frombuffer(b"".join(score.hits for score in scores), dtype=np.uint8).reshape(len(scores), -1)
    num_truths = np.array([score.num_truths for score in scores])
    columns: dict[str, Any] = {"prompt_id": prompt_ids}
    columns |= {f"recall_at_{k}": recall(hits, num_truths, k) for k in cutoffs}
    columns |= {f"ndcg_at_{k}": ndcg(hits, num_truths, k) for k in cutoffs}
    columns |= {f"hit_rate_at_{k}": hit_rate(hits, k) for k in cutoffs}
    columns["mrr"] = reciprocal_rank(hits)
    qualities = zip(*(score.quality for score in scores), strict=True)
    columns |= {name: np.array(values) for name, values in zip(Quality._fields, qualities, strict=True)}
    return pd.DataFrame(columns)


def score_lists(
    texts: Mapping[str, str],
    rows: Sequence[dict[str, Any]],
    catalog: Catalog,
    num_ranks: int,
    cutoffs: Sequence[int],
) -> pd.DataFrame:
    """Return the scores of every row under the protocol `evaluation` (see `score_table`).

    `texts` holds one list a prompt; it is parsed once for all rows of the prompt.
    """
    written = {prompt: read_list(texts[prompt], catalog) for prompt in {row["prompt_id"]: None for row in rows}}
    scores = [score_row(written[row["prompt_id"]], truths(row), row["seen_titles"], catalog, num_ranks) for row in rows]
    return score_table([row["prompt_id"] for row in rows], scores, cutoffs)


def mean_scores(scores: pd.DataFrame) -> dict[str, float]:
    """Return the mean of every score over the rows."""
    return {name: float(value) for name, value in scores.drop(columns="prompt_id").mean().items()}
