"""Scores written lists: a table with one row for each test row."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import YEAR_TOLERANCE, Catalog
from convrec.data.conversations import Row, person_of, truths
from convrec.data.matching import Protocol, Target, judge, make_target
from convrec.data.parsing import WrittenList, read_list
from convrec.evaluation.comparison import KEYS, mean_interval
from convrec.evaluation.metrics import rank_scores

STEP_SAMPLES = 1000  # bootstrap samples of `step_scores`


class Quality(NamedTuple):
    """Properties of one list that do not depend on the ground truth.

    - `in_catalog`: share of its lines that name a catalog item; 0 for an empty list.
    - `format`: 1 if it has exactly N lines, each exactly a catalog line, else 0.
    - `duplicates`, `seen`: share of its lines that repeat an earlier line, or name a seen title.
    - `length`: the number of its lines.

    Blank lines count only for `format`.
    """

    in_catalog: float
    format: float
    duplicates: float
    seen: float
    length: float


class RowScore(NamedTuple):
    """The relevance of one row's ranks (one byte each), the size of its ground truth, and the quality of its list."""

    hits: bytearray
    num_truths: int
    quality: Quality


def quality(written: WrittenList, target: Target, catalog: Catalog, num_ranks: int) -> Quality:
    """Return the `Quality` of one list."""
    items, _, others, exact = written
    num_blank = items.count(None)
    num_items = len(items) - num_blank
    size = num_items + len(others)
    num_distinct = len(set(items)) - (num_blank > 0)
    num_seen = 0 if target.seen.isdisjoint(items) else sum(map(target.seen.__contains__, items))
    if others:
        num_distinct += len(set(others))
        num_seen += sum(map(target.seen_titles.__contains__, [title for title, _ in others]))
    return Quality(
        num_items / max(1, size),
        float(exact and size == num_ranks),
        (size - num_distinct) / max(1, size),
        num_seen / max(1, size),
        float(size),
    )


def score_row(
    written: WrittenList,
    target: Target,
    catalog: Catalog,
    num_ranks: int,
    protocol: Protocol = "evaluation",
    tolerance: int = YEAR_TOLERANCE,
) -> RowScore:
    """Return the score of one list for one row."""
    hits = judge(written, target, catalog, num_ranks, protocol, tolerance)
    return RowScore(hits, target.num_truths, quality(written, target, catalog, num_ranks))


def score_table(
    prompt_ids: Sequence[str | int], persons: Sequence[str | int], scores: Sequence[RowScore], cutoffs: Sequence[int]
) -> pd.DataFrame:
    """Return a table with one row for each score.

    Columns: prompt_id and person; the metrics of ranks (see `rank_scores`); the fields of `Quality`.
    """
    hits = np.frombuffer(b"".join(score.hits for score in scores), dtype=np.uint8).reshape(len(scores), -1)
    num_truths = np.array([score.num_truths for score in scores])
    columns: dict[str, Any] = dict(zip(KEYS, (prompt_ids, persons), strict=True))
    columns |= rank_scores(hits, num_truths, cutoffs)
    qualities = zip(*(score.quality for score in scores), strict=True)
    columns |= {name: np.array(values) for name, values in zip(Quality._fields, qualities, strict=True)}
    return pd.DataFrame(columns)


def score_lists(
    texts: Mapping[str, str],
    rows: Sequence[Row],
    catalog: Catalog,
    num_ranks: int,
    cutoffs: Sequence[int],
) -> pd.DataFrame:
    """Return the scores of every row under the protocol `evaluation` (see `score_table`).

    `texts` holds one list for each prompt id. A list is parsed once for all rows of its prompt.
    """
    written = {prompt: read_list(texts[prompt], catalog) for prompt in {row["prompt_id"]: None for row in rows}}
    targets = (make_target(truths(row), row["seen_titles"], catalog) for row in rows)
    scores = [
        score_row(written[row["prompt_id"]], target, catalog, num_ranks)
        for row, target in zip(rows, targets, strict=True)
    ]
    return score_table([row["prompt_id"] for row in rows], [person_of(row) for row in rows], scores, cutoffs)


def mean_scores(scores: pd.DataFrame) -> dict[str, float]:
    """Return the mean of every score over the rows."""
    return {name: float(value) for name, value in scores.drop(columns=KEYS).mean().items()}


def step_scores(
    chosen: np.ndarray,
    prompts: Sequence[Row],
    lists: Mapping[str, Sequence[str]],
    rows: Sequence[Row],
    catalog: Catalog,
    num_ranks: int,
    cutoffs: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """Return the scores of demonstrations, for the chosen prompts, after each step.

    They are means over the prompts' rows, with intervals at the largest cutoff.
    """
    wanted = [prompts[i]["prompt_id"] for i in chosen]
    known = set(wanted)
    rows = [row for row in rows if row["prompt_id"] in known]

    def scores_of(texts: Sequence[str]) -> dict[str, Any]:
        by_prompt = dict(zip(wanted, (texts[i] for i in chosen), strict=True))
        scores, intervals = score_lists(by_prompt, rows, catalog, num_ranks, cutoffs), {}
        for metric in (f"recall_at_{max(cutoffs)}", f"ndcg_at_{max(cutoffs)}"):
            interval = mean_interval(scores, metric, STEP_SAMPLES, seed)
            intervals[metric] = {"low": interval.low, "high": interval.high}
        return {**mean_scores(scores), "intervals": intervals}

    return {"rows": len(rows), "prompts": len(wanted), **{name: scores_of(texts) for name, texts in lists.items()}}
