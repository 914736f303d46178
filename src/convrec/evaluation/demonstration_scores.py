"""Scores of the demonstrations after each step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.evaluation.comparison import mean_interval
from convrec.evaluation.scoring import mean_scores, score_lists

BOOTSTRAP_SAMPLES = 1000


def _list_scores(
    lists: dict[str, list[str]],
    prompts: list[Row],
    rows: list[Row],
    catalog: Catalog,
    list_length: int,
    cutoffs: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """Return the mean scores of the lists of each step over the prompts' rows, with intervals at the largest cutoff."""
    found: dict[str, Any] = {}
    for step, texts in lists.items():
        by_prompt = {row["prompt_id"]: text for row, text in zip(prompts, texts, strict=True)}
        scores = score_lists(by_prompt, rows, catalog, list_length, cutoffs)
        intervals = {}
        for metric in (f"recall_at_{max(cutoffs)}", f"ndcg_at_{max(cutoffs)}"):
            interval = mean_interval(scores, metric, BOOTSTRAP_SAMPLES, seed)
            intervals[metric] = {"low": interval.low, "high": interval.high}
        found[step] = {**mean_scores(scores), "intervals": intervals}
    return found


def step_scores(
    chosen: np.ndarray,
    prompts: list[Row],
    lists: dict[str, list[str]],
    alone: dict[str, list[str]],
    rows: list[Row],
    catalog: Catalog,
    list_length: int,
    cutoffs: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    """Return the scores, for the chosen prompts, of the lists after each step and of each evidence term by itself."""
    own = [prompts[i] for i in chosen]
    wanted = {row["prompt_id"] for row in own}
    rows = [row for row in rows if row["prompt_id"] in wanted]
    steps, single = (
        _list_scores(
            {name: [texts[i] for i in chosen] for name, texts in of.items()},
            own, rows, catalog, list_length, cutoffs, seed,
        )
        for of in (lists, alone)
    )  # fmt: skip
    return {"rows": len(rows), "prompts": len(own), **steps, "alone": single}
