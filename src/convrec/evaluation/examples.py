"""Example lists for the report: the status of each line, and the faults of the worst lists."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.matching import Truth, relevance
from convrec.data.parsing import parse_list
from convrec.data.titles import fold

Status = Literal["hit", "seen", "outside", "blank", "repeated", "unscored", "miss"]


class Line(NamedTuple):
    """One line of a list as it was written, and its status."""

    text: str
    status: Status


class Example(NamedTuple):
    """A prompt, the accepted items of each answer to it, lists and their NDCG by system, and the faults in words."""

    prompt_id: str
    messages: Sequence[Mapping[str, str]]
    answers: Sequence[Sequence[Truth]]
    lists: Mapping[str, Sequence[Line]]
    ndcg: Mapping[str, float] = MappingProxyType({})
    faults: Sequence[str] = ()


def judge_lines(
    text: str,
    answers: Sequence[Sequence[Truth]],
    seen_titles: Sequence[str],
    catalog: Catalog,
    num_ranks: int,
) -> list[Line]:
    """Return each line with its status; a line is a hit if it is one for any of the prompt's answers.

    `repeated`: it names an item of an earlier line, and takes up a rank.
    `unscored`: it follows `num_ranks` lines that name unseen items of the catalog, where the protocol `evaluation`
    stops counting.
    """
    entries = parse_list(text, catalog)
    seen, seen_items = {fold(title) for title in seen_titles}, catalog.indices_of_titles(seen_titles)
    rows = [relevance(text, truths, seen_titles, catalog, len(entries), "reward") for truths in answers]
    lines, num_usable, named = [], 0, set()
    for rank, (entry, written) in enumerate(zip(entries, text.split("\n"), strict=False)):
        status: Status
        if entry is None:
            status = "blank"
        elif fold(entry.title) in seen or entry.index in seen_items:
            status = "seen"
        elif entry.index is None:
            status = "outside"
        elif num_usable >= num_ranks:
            status = "unscored"
        else:
            num_usable, status = num_usable + 1, "miss"
            if entry.index in named:
                status = "repeated"
            if any(row[rank] for row in rows):
                status = "hit"
            named.add(entry.index)
        lines.append(Line(written.strip(), status))
    return lines


def worst_rows(scores: np.ndarray, baseline: np.ndarray, prompt_ids: Sequence[str], number: int) -> list[int]:
    """Return the positions of the `number` rows with the lowest scores, at most one for each prompt.

    Ties are broken by the largest loss against the baseline, then by prompt id, then by position. Shape: scores and
    baseline (B,).
    """
    order = sorted(range(len(scores)), key=lambda i: (scores[i], scores[i] - baseline[i], prompt_ids[i], i))
    first: dict[str, int] = {}
    for row in order:
        first.setdefault(prompt_ids[row], row)
    return list(first.values())[:number]


def faults(
    lines: Sequence[Line], groundtruth: Sequence[Truth], liked: Set[int], catalog: Catalog, num_ranks: int
) -> list[str]:
    """Return the faults of a list and what made its row hard, in words; `liked`: the items liked in training."""
    number, found = Counter(line.status for line in lines), []
    if len(lines) != num_ranks:
        found.append(f"{len(lines)} lines instead of {num_ranks}" if lines else "an empty list")
    items = [catalog.find(truth.title, truth.year) for truth in groundtruth]
    cold = sum(item is not None and item not in liked for item in items)
    for count, whole, what in (
        (number["outside"], lines, "lines outside the catalog"),
        (number["seen"], lines, "lines that name a seen title"),
        (number["repeated"], lines, "lines that repeat an earlier one"),
        (number["blank"], lines, "lines that are blank"),
        (items.count(None), items, "ground-truth items outside the catalog"),
        (cold, items, "ground-truth items never liked in training"),
    ):
        if count:
            found.append(f"{count} of {len(whole)} {what}")
    if not number["hit"] and number["miss"]:
        found.append(f"usable lines without a hit: {number['miss']}")
    return found
