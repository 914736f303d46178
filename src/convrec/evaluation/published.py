"""The published figures of Reddit-v2, and the scores of lists by the authors' protocol (docs/reproduce.md).

Source: arXiv 2510.20150 and its public evaluation code. The protocol reads `Title (Year)` from the beginning of each
line, drops lines whose title is seen, then lines that are not exactly a title and year of the catalog. A ground-truth
item is hit by the first line left with exactly its title and a year at most 2 away.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, person_of, truths
from convrec.evaluation.comparison import KEYS

# R@20 and NDCG@20 on the test split of Reddit-v2, by profile and system.
PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "reddit-qwen2.5-0.5b": {
        "zero_shot": (0.0021, 0.0021),
        "sft": (0.1308, 0.0704),
        "grpo": (0.1803, 0.0945),
        "rank_grpo:log": (0.1946, 0.1017),
        "rank_grpo:exp_inf": (0.2047, 0.1079),
    },
    "reddit-llama-3.2-1b": {
        "zero_shot": (0.0263, 0.0176),
        "sft": (0.1498, 0.0819),
        "grpo": (0.2037, 0.1097),
        "rank_grpo:log": (0.2159, 0.1134),
        "rank_grpo:exp_inf": (0.2165, 0.1153),
    },
    "reddit-llama-3.2-3b": {
        "zero_shot": (0.0961, 0.0580),
        "sft": (0.1541, 0.0842),
        "grpo": (0.2186, 0.1170),
        "rank_grpo:log": (0.2302, 0.1239),
        "rank_grpo:exp_inf": (0.2368, 0.1283),
    },
}
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
