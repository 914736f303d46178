"""Scores of the demonstrations after each step."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row
from convrec.evaluation.comparison import mean_interval
from convrec.evaluation.scoring import mean_scores, score_lists

BOOTSTRAP_SAMPLES = 1000


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
    """Return the scores, for the chosen prompts, of the lists after each step and of each evidence term by itself.

    They are means over the prompts' rows, with intervals at the largest cutoff.
    """
    wanted = [prompts[i]["prompt_id"] for i in chosen]
    known = set(wanted)
    rows = [row for row in rows if row["prompt_id"] in known]

    def scores_of(texts: list[str]) -> dict[str, Any]:
        by_prompt = dict(zip(wanted, (texts[i] for i in chosen), strict=True))
        scores = score_lists(by_prompt, rows, catalog, list_length, cutoffs)
        intervals = {}
        for metric in (f"recall_at_{max(cutoffs)}", f"ndcg_at_{max(cutoffs)}"):
            interval = mean_interval(scores, metric, BOOTSTRAP_SAMPLES, seed)
            intervals[metric] = {"low": interval.low, "high": interval.high}
        return {**mean_scores(scores), "intervals": intervals}

    steps, single = ({name: scores_of(texts) for name, texts in of.items()} for of in (lists, alone))
    return {"rows": len(rows), "prompts": len(wanted), **steps, "alone": single}
