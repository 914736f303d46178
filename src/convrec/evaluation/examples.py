"""Example lists for the report: the status of each line, and the worst lists."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

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
    """A prompt, the accepted items of each answer to it, and lists and their NDCG by system."""

    prompt_id: str
    messages: Sequence[Mapping[str, str]]
    answers: Sequence[Sequence[Truth]]
    lists: Mapping[str, Sequence[Line]]
    ndcg: Mapping[str, float] = MappingProxyType({})


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
    rows = pd.DataFrame({"score": scores, "gain": scores - baseline, "prompt": prompt_ids})
    return rows.sort_values(list(rows), kind="stable").drop_duplicates("prompt").index[:number].tolist()
