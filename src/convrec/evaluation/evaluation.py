"""One evaluation: the rows of a split, how models write lists for them, and how lists are scored."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, distinct_prompts, read_prompts
from convrec.evaluation.beyond_accuracy import broken_wishes, concentration, coverage, recommended
from convrec.evaluation.comparison import SAMPLES, Gain, mean_intervals, paired_interval
from convrec.evaluation.scoring import mean_scores, score_lists
from convrec.generation.engine import EngineOptions
from convrec.generation.lists import ListSettings, list_writer
from convrec.generation.trie import Guide, LogWeights
from convrec.project.paths import Paths


class ScoredLists(NamedTuple):
    """Lists by prompt_id, the scores of each row, and the share of prompts that were truncated for the model."""

    texts: dict[str, str]
    scores: pd.DataFrame
    truncated_share: float = 0.0


@dataclass(frozen=True)
class Evaluation:
    """The rows that systems are scored on, and the settings of lists, engine, scores and intervals.

    Lists have `settings.list_length` ranks; `seed` is that of the bootstrap.
    """

    rows: Sequence[Row]
    catalog: Catalog
    settings: ListSettings
    engine: EngineOptions
    cutoffs: Sequence[int]
    seed: int

    @classmethod
    def of_split(
        cls,
        paths: Paths,
        split: str,
        max_prompts: int | None,
        settings: Mapping[str, Any],
        engine: Mapping[str, Any],
        **scoring: Any,
    ) -> "Evaluation":
        """Return the evaluation on at most `max_prompts` prompts of a split (None: all), see `Params.evaluation`.

        Raises `InputError` if the split or the catalog is not made yet, or the engine cannot run here.
        """
        paths.require_split(split)
        options = EngineOptions.on_this_machine(**engine)
        rows, _ = read_prompts(paths.split(split), max_prompts)
        return cls(rows, Catalog.read(paths.catalog), ListSettings(**settings), options, **scoring)

    @cached_property
    def prompts(self) -> list[Row]:
        """The first row of each prompt; its rows share one list."""
        return distinct_prompts(self.rows)

    @property
    def headline(self) -> str:
        """The metric that decides: NDCG at the largest cutoff."""
        return f"ndcg_at_{max(self.cutoffs)}"

    def of_lists(self, lists: Sequence[str], truncated_share: float = 0.0) -> ScoredLists:
        """Return the scores of lists, one for each of `prompts`."""
        texts = dict(zip((row["prompt_id"] for row in self.prompts), lists, strict=True))
        scores = score_lists(texts, self.rows, self.catalog, self.settings.list_length, self.cutoffs)
        return ScoredLists(texts, scores, truncated_share)

    def of_model(
        self,
        model: Path,
        constrained: bool,
        settings: ListSettings | None = None,
        guide: Guide | None = None,
    ) -> ScoredLists:
        """Return the scores of a model's greedy lists (see `of_guided`); `guide` guides constrained ones."""
        with self.of_guided(model, constrained, settings) as scored:
            return scored(guide(self.prompts) if constrained and guide else None)[0]

    @contextmanager
    def of_guided(
        self, model: Path, constrained: bool = True, settings: ListSettings | None = None
    ) -> Iterator[Callable[..., list[ScoredLists]]]:
        """Give the function from guidances, weights of each prompt or None, to the scores of a model's greedy lists.

        The model is loaded once. If `constrained`, the lists contain only catalog items. `settings` are those of the
        model, if it has its own.
        """
        catalog = self.catalog if constrained else None
        with list_writer(model, self.prompts, settings or self.settings, self.engine, catalog) as write:

            def scored(*guidances: Sequence[LogWeights] | None) -> list[ScoredLists]:
                return [self.of_lists(found.texts, found.truncated_share) for found in write(*guidances)]

            yield scored

    def items(self, texts: Mapping[str, str]) -> dict[str, list[int]]:
        """Return the catalog indices that each list recommends, by prompt_id."""
        size = self.settings.list_length
        return {
            row["prompt_id"]: recommended(texts[row["prompt_id"]], row["seen_titles"], self.catalog, size)
            for row in self.prompts
        }

    def of_all_lists(self, texts: Mapping[str, str]) -> dict[str, float]:
        """Return the metrics of all lists together: coverage, concentration, and the share that breaks exclusions.

        Those without a value are left out.
        """
        items = self.items(texts)
        found = {
            "coverage": coverage(items.values(), len(self.catalog)),
            "concentration": concentration(items.values()),
            "broken_wishes": broken_wishes(items, self.prompts, self.catalog),
        }
        return {name: value for name, value in found.items() if not np.isnan(value)}

    def intervals(self, scores: pd.DataFrame) -> dict[str, dict[str, float]]:
        """Return mean, low, high and n of every score."""
        names = list(mean_scores(scores))
        return {name: i._asdict() for name, i in mean_intervals(scores, names, SAMPLES, self.seed).items()}

    def gain(self, one: pd.DataFrame, other: pd.DataFrame, metric: str) -> Gain:
        """Return the paired difference of a metric between the scores of two systems."""
        return paired_interval(one, other, metric, SAMPLES, self.seed)


def flat_metrics(metrics: Mapping[str, Mapping[str, float]], prefix: str = "") -> dict[str, float]:
    """Return each metric's mean under its name, and its interval, if it has one, as NAME_low and NAME_high."""
    return {
        f"{prefix}{name}{'' if end == 'mean' else f'_{end}'}": value
        for name, interval in metrics.items()
        for end, value in interval.items()
        if end != "n" and value is not None
    }
