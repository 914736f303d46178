"""Published figures, and the scores of lists by the protocol of Reddit-v2's authors (docs/reproduce.md).

The protocol of arXiv 2510.20150, from its public evaluation code, reads `Title (Year)` from the beginning of each
line, drops lines whose title is seen, then lines that are not exactly a title and year of the catalog. A ground-truth
item is hit by the first line left with exactly its title and a year at most 2 away.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, person_of, truths
from convrec.evaluation.comparison import KEYS
from convrec.project.yaml import read_yaml


class Published(NamedTuple):
    """The figures of published systems in the order of `metrics`, and on what they are measured."""

    data: str
    metrics: list[str]
    figures: dict[str, list[float]]
    own_protocol: bool = False  # whether `published_scores` computes the figures
    note: str = ""  # how the figures compare with this project's evaluation


@cache
def all_published() -> dict[str, Published]:
    """Return the figures of published.yaml by profile, or by profile/CATALOG."""
    read = read_yaml(Path(__file__).with_name("published.yaml"))
    return {name: Published(**values) for name, values in read.items()}


_TOLERANCE = 2  # years
_LINE = re.compile(r"(.+?)\s+\((\d{4})\)")
_MARKS = re.compile(r"^(?:[*_#-]+\s*|\d+\s*[.)、—–-]\s+)+|[*_#-]+$")
_BRACKETS = re.compile(r"\([^()]*\)")

Line = tuple[str, int]


def _bare(text: str) -> str:
    """Return the text without list marks, emphasis and quotes around it, and with single spaces."""
    before = None
    while before != text:
        before, text = text, _MARKS.sub("", " ".join(text.split())).strip()
        if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
            text = text[1:-1]
    return text


@lru_cache(maxsize=100_000)  # many rows share a list
def read_lines(text: str) -> list[Line]:
    """Return title and year of each line that begins with `Title (Year)`; other lines are dropped."""
    found = (_LINE.match(_bare(line)) for line in text.split("\n"))
    lines = ((_bare(_BRACKETS.sub("", match[1])), int(match[2])) for match in found if match)
    return [(title, year) for title, year in lines if title]


def published_scores(
    texts: Mapping[str, str], rows: Sequence[Row], catalog: Catalog, cutoffs: Sequence[int]
) -> pd.DataFrame:
    """Return each row's prompt_id, person, recall_at_K and ndcg_at_K as the authors' evaluation code computes them.

    `texts` holds one list for each prompt id. The ideal DCG has min(|gt|, K, lines left) hits.
    """
    items, found = {(item.title, item.year) for item in catalog.items}, []
    for row in rows:
        seen, groundtruth = set(row["seen_titles"]), truths(row)
        kept = [line for line in read_lines(texts[row["prompt_id"]]) if line[0] not in seen and line in items]
        hits, discounts = np.zeros(len(kept)), 1 / np.log2(np.arange(2, len(kept) + 2))
        for name, own_year in groundtruth:
            for rank, (title, year) in enumerate(kept):
                if title == name and own_year is not None and abs(year - own_year) <= _TOLERANCE:
                    hits[rank] = 1
                    break
        scores: dict[str, float] = {}
        for k in cutoffs:
            ideal = discounts[: min(len(groundtruth), k)].sum()
            scores[f"recall_at_{k}"] = hits[:k].sum() / max(1, len(groundtruth))
            scores[f"ndcg_at_{k}"] = hits[:k] @ discounts[:k] / ideal if ideal else 0.0
        found.append(dict(zip(KEYS, (row["prompt_id"], person_of(row)), strict=True)) | scores)
    return pd.DataFrame(found)
