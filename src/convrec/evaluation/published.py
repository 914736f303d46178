"""Published figures, and the scores of lists by the protocol of Reddit-v2's authors (docs/reproduce.md).

Sources: Reddit-v2, arXiv 2510.20150 and its public evaluation code; Amazon, Table 1 of arXiv 2510.24431; ReDial, the
public results of arXiv 2308.10053 for GPT-4. The protocol of Reddit-v2 reads `Title (Year)` from the beginning of each
line, drops lines whose title is seen, then lines that are not exactly a title and year of the catalog. A ground-truth
item is hit by the first line left with exactly its title and a year at most 2 away.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, person_of, truths
from convrec.evaluation.comparison import KEYS


class Published(NamedTuple):
    """The figures of published systems in the order of `metrics`, and on what they are measured."""

    data: str
    metrics: tuple[str, ...]
    figures: dict[str, tuple[float, ...]]
    own_protocol: bool = False  # whether `published_scores` computes the figures
    note: str = ""  # how the figures compare with this project's evaluation


def _reddit(*figures: tuple[float, float]) -> Published:
    systems = ("zero_shot", "sft", "grpo", "rank_grpo:log", "rank_grpo:exp_inf")
    return Published(
        "Reddit-v2, test split", ("recall_at_20", "ndcg_at_20"), dict(zip(systems, figures, strict=True)), True
    )


def _amazon(name: str, **figures: tuple[float, ...]) -> Published:
    metrics = tuple(f"{metric}_at_{cutoff}" for cutoff in (3, 5, 10) for metric in ("hit_rate", "ndcg"))
    note = (
        "The published systems have the same test rows, candidates and metrics, but their own settings. D3's NDCG@3 of "
        "Industrial and S-DPO's NDCG@10 of Office are as printed; they do not fit their other columns."
    )
    return Published(f"Amazon {name}, MiniOneRec's test split", metrics, figures, note=note)


# By profile; profile/NAME is for data whose catalog's file has a name that begins so.
PUBLISHED: dict[str, Published] = {
    "reddit-qwen2.5-0.5b": _reddit(
        (0.0021, 0.0021), (0.1308, 0.0704), (0.1803, 0.0945), (0.1946, 0.1017), (0.2047, 0.1079)
    ),
    "reddit-llama-3.2-1b": _reddit(
        (0.0263, 0.0176), (0.1498, 0.0819), (0.2037, 0.1097), (0.2159, 0.1134), (0.2165, 0.1153)
    ),
    "reddit-llama-3.2-3b": _reddit(
        (0.0961, 0.0580), (0.1541, 0.0842), (0.2186, 0.1170), (0.2302, 0.1239), (0.2368, 0.1283)
    ),
    "amazon/Industrial_and_Scientific": _amazon(
        "Industrial",
        gru4rec=(0.0638, 0.0542, 0.0774, 0.0598, 0.0999, 0.0669),
        caser=(0.0618, 0.0514, 0.0717, 0.0555, 0.0942, 0.0628),
        sasrec=(0.0790, 0.0700, 0.0909, 0.0748, 0.1088, 0.0806),
        hstu=(0.0927, 0.0885, 0.1037, 0.0918, 0.1163, 0.0958),
        tiger=(0.0852, 0.0742, 0.1010, 0.0807, 0.1321, 0.0908),
        lc_rec=(0.0915, 0.0805, 0.1057, 0.0862, 0.1332, 0.0952),
        bigrec=(0.0931, 0.0841, 0.1092, 0.0907, 0.1370, 0.0997),
        d3=(0.1024, 0.0991, 0.1213, 0.0989, 0.1500, 0.1082),
        sdpo=(0.1032, 0.0906, 0.1238, 0.0991, 0.1524, 0.1082),
        minionerec=(0.1143, 0.1011, 0.1321, 0.1084, 0.1586, 0.1167),
    ),
    "amazon/Office_Products": _amazon(
        "Office",
        gru4rec=(0.0629, 0.0528, 0.0789, 0.0595, 0.1019, 0.0669),
        caser=(0.0748, 0.0615, 0.0865, 0.0664, 0.1093, 0.0737),
        sasrec=(0.0861, 0.0769, 0.0949, 0.0805, 0.1120, 0.0858),
        hstu=(0.1134, 0.1031, 0.1252, 0.1079, 0.1400, 0.1126),
        tiger=(0.0986, 0.0852, 0.1163, 0.0960, 0.1408, 0.1002),
        lc_rec=(0.0921, 0.0807, 0.1048, 0.0859, 0.1237, 0.0920),
        bigrec=(0.1069, 0.0961, 0.1204, 0.1017, 0.1434, 0.1091),
        d3=(0.1204, 0.1055, 0.1406, 0.1139, 0.1634, 0.1213),
        sdpo=(0.1169, 0.1033, 0.1356, 0.1110, 0.1587, 0.1255),
        minionerec=(0.1217, 0.1088, 0.1420, 0.1172, 0.1634, 0.1242),
    ),
    "redial": Published(
        "ReDial",
        ("recall_at_20", "ndcg_at_20"),
        {"gpt_4": (0.2675, 0.1324)},
        note="GPT-4 answers CRSLab's test split, where every movie that the recommender names is ground truth: its "
        "figures are not comparable with the others.",
    ),
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
