"""A model's lists for the prompts of a split, and their scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts
from convrec.evaluation.scoring import score_lists
from convrec.generation.lists import EngineOptions, ListSettings, model_lists


class ScoredLists(NamedTuple):
    """A model's lists by prompt_id, the scores of each row, and the share of prompts that were truncated."""

    texts: dict[str, str]
    scores: pd.DataFrame
    truncated_share: float


def score_model(
    model: Path,
    settings: ListSettings,
    engine: EngineOptions,
    rows: list[dict[str, Any]],
    catalog: Catalog,
    cutoffs: Sequence[int],
    list_length: int,
    constrained: bool = False,
) -> ScoredLists:
    """Return a model's greedy lists for the prompts of these rows, and the scores of their first `list_length` items.

    If `constrained`, lists contain only catalog items.
    """
    prompts = distinct_prompts(rows)
    lists = model_lists(model, prompts, settings, engine, catalog if constrained else None)
    texts = dict(zip((row["prompt_id"] for row in prompts), lists.texts, strict=True))
    return ScoredLists(texts, score_lists(texts, rows, catalog, list_length, cutoffs), lists.truncated_share)
