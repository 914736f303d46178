"""Baselines without a language model, fitted to the training split.

Each baseline scores all items for each prompt. Its hyper-parameters are chosen on the validation split.
"""

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from convrec.classical.als import Als
from convrec.classical.collaborative import Ease, ItemKnn, Likes, Named, best_items
from convrec.classical.embedding import Embedder, make_embedder
from convrec.classical.neighbours import Neighbours
from convrec.data.catalog import Catalog
from convrec.data.conversations import Row, date_of, distinct_prompts, is_before
from convrec.data.parsing import format_list
from convrec.evaluation.beyond_accuracy import mentions
from convrec.evaluation.scoring import score_lists
from convrec.evaluation.systems import Baseline
from convrec.project.device import pick_device

logger = logging.getLogger(__name__)

Hyperparameters = dict[str, Any]
ScoreFunction = Callable[..., np.ndarray]  # arguments: a slice of the prompts, hyper-parameters; returns (B, C)
NEEDS = {  # what a baseline needs in the data
    "last_month": "a training split with dates",
    **dict.fromkeys(("item_knn", "ease", "als"), "prompts that name items of the catalog"),
}
_BLOCK = 256  # prompts whose scores of all items are in memory at once
_MONTH_DAYS = 30
_VALIDATION_PROMPTS = 2000  # maximum number of prompts for choosing hyper-parameters
_NEIGHBOURS = (25, 50, 100, 200, 400, 800, 1600)
_KNN = {"shrinkage": (0.0, 10.0, 100.0), "nearest": (100, None)}
_EASE = {"regularization": (100.0, 300.0, 1000.0, 3000.0)}
_ALS = {"factors": (16, 64), "regularization": (10.0, 30.0), "alpha": (1.0, 3.0)}
_DISLIKE_WEIGHTS = (0.0, 0.5)


@dataclass(frozen=True)
class Options:
    """Options of all baselines."""

    size: int  # items of a list
    cutoff: int  # hyper-parameters are chosen by NDCG@cutoff on the validation split
    embedder: Callable[[Sequence[str]], Embedder]  # for `neighbours`: fits an embedder to the training conversations
    seed: int

    @classmethod
    def of(cls, size: int, cutoffs: Sequence[int], embedder: Mapping[str, Any], device: str, seed: int) -> "Options":
        """Return the options with the largest cutoff; `embedder` holds the arguments of `make_embedder`."""
        return cls(size, max(cutoffs), partial(make_embedder, **embedder, device=pick_device(device)), seed)


class Scorer(NamedTuple):
    """A baseline fitted to the training split: the grid of hyper-parameters, and the score function for prompts."""

    grid: list[Hyperparameters]
    of: Callable[[Sequence[Row]], ScoreFunction]


class Answers(NamedTuple):
    """A baseline's lists, one for each prompt; its chosen hyper-parameters; their NDCG on the validation split."""

    lists: list[str]
    settings: Hyperparameters
    validation: float


@dataclass(frozen=True)
class _Training:
    """The training data that the baselines are fitted to."""

    rows: Sequence[Row]
    validation: Sequence[Row]
    catalog: Catalog
    options: Options
    tells_dislikes: bool  # some prompt names a disliked item

    @cached_property
    def counts(self) -> np.ndarray:
        return mentions(self.rows, self.catalog)

    @cached_property
    def likes(self) -> Likes:
        return Likes.of(self.rows, self.catalog)

    @property
    def dislike_weights(self) -> dict[str, Sequence[float]]:
        """The weights of disliked items to choose from; only 0 if no prompt names a disliked item."""
        return {"dislike_weight": _DISLIKE_WEIGHTS if self.tells_dislikes else _DISLIKE_WEIGHTS[:1]}

    def of_all(self, scores: np.ndarray) -> Scorer:
        """Return the scorer of a baseline whose scores do not depend on the prompt."""

        def of(prompts: Sequence[Row]) -> ScoreFunction:
            return lambda part: np.broadcast_to(scores, (len(prompts[part]), len(scores)))

        return Scorer([{}], of)


def _grid(values: Mapping[str, Sequence[Any]]) -> list[Hyperparameters]:
    """Return all combinations of the hyper-parameters' values."""
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]


def _last_month(training: _Training) -> Scorer | None:
    last = max(map(date_of, training.rows), default="")
    if not last:
        return None
    first = last[:7]
    if is_before(training.rows, training.validation) and min(map(date_of, training.validation)).startswith(first):
        # validation begins within this month, of which training may have a few days only
        first = str(datetime.date.fromisoformat(last) - datetime.timedelta(days=_MONTH_DAYS - 1))
    recent = (row for row in training.rows if date_of(row) >= first)
    return training.of_all(mentions(recent, training.catalog))


def _neighbours(training: _Training) -> Scorer:
    neighbours = Neighbours(training.rows, training.catalog, training.options.embedder)

    def of(prompts: Sequence[Row]) -> ScoreFunction:
        nearest = neighbours.nearest(prompts, max(_NEIGHBOURS))
        return lambda part, neighbours: nearest.votes(part, neighbours)

    return Scorer([{"neighbours": number} for number in _NEIGHBOURS], of)


def _item_knn(training: _Training) -> Scorer:
    knn = ItemKnn(training.likes.matrix)

    def of(prompts: Sequence[Row]) -> ScoreFunction:
        named = Named.of(prompts, training.catalog)
        return lambda part, **settings: knn.scores(named.part(part), **settings)

    return Scorer(_grid(_KNN | training.dislike_weights), of)


def _ease(training: _Training) -> Scorer:
    @lru_cache(maxsize=1)  # a model has as many numbers as the square of the catalog
    def model(regularization: float) -> Ease:
        return Ease(training.likes.matrix, regularization)

    def of(prompts: Sequence[Row]) -> ScoreFunction:
        named = Named.of(prompts, training.catalog)
        return lambda part, regularization, **settings: model(regularization).scores(named.part(part), **settings)

    return Scorer(_grid(_EASE | training.dislike_weights), of)


def _als(training: _Training) -> Scorer:
    @lru_cache(maxsize=1)
    def model(**settings: Any) -> Als:
        return Als(training.likes.matrix, seed=training.options.seed, **settings)

    def of(prompts: Sequence[Row]) -> ScoreFunction:
        named = Named.of(prompts, training.catalog)
        return lambda part, **settings: model(**settings).scores(named.liked[part])

    return Scorer(_grid(_ALS), of)


_MAKERS: dict[Baseline, Callable[[_Training], Scorer | None]] = {
    "popularity": lambda training: training.of_all(training.counts),
    "last_month": _last_month,
    "neighbours": _neighbours,
    "item_knn": _item_knn,
    "ease": _ease,
    "als": _als,
}


def baseline_lists(
    names: Iterable[Baseline],
    train: Sequence[Row],
    validation: Sequence[Row],
    prompts: Sequence[Row],
    catalog: Catalog,
    options: Options,
) -> dict[Baseline, Answers | None]:
    """Return each named baseline's lists for the prompts, in the order of `names`; None if the data lack its `NEEDS`.

    The hyper-parameters with the highest mean NDCG on the validation rows are chosen; on ties, the first. Items with
    equal scores are ordered by popularity in training.
    """
    asked = distinct_prompts(validation)[:_VALIDATION_PROMPTS]
    kept = {row["prompt_id"] for row in asked}
    rows = [row for row in validation if row["prompt_id"] in kept]
    named = Named.of([*asked, *prompts], catalog)
    training = _Training(train, validation, catalog, options, named.disliked.nnz > 0)
    metric = f"ndcg_at_{options.cutoff}"
    found: dict[Baseline, Answers | None] = {}
    for name in names:
        needs_items = name in NEEDS and name != "last_month"
        scorer = None if needs_items and not named.liked.nnz else _MAKERS[name](training)
        if scorer is None:
            logger.info("baseline %s is skipped: it needs %s", name, NEEDS[name])
            found[name] = None
            continue
        scores, values = scorer.of(asked), []
        for settings in scorer.grid:
            lists = _lists(scores, settings, asked, training)
            texts = dict(zip((row["prompt_id"] for row in asked), lists, strict=True))
            values.append(float(score_lists(texts, rows, catalog, options.size, [options.cutoff])[metric].mean()))
        best = int(np.argmax(values))
        chosen = scorer.grid[best]
        logger.info("baseline %s: validation %s %.4f %s", name, metric, values[best], chosen or "")
        found[name] = Answers(_lists(scorer.of(prompts), chosen, prompts, training), chosen, values[best])
    return found


def _lists(scores: ScoreFunction, settings: Hyperparameters, prompts: Sequence[Row], training: _Training) -> list[str]:
    """Return the lists of the highest-scored items, without the seen titles of each prompt."""
    catalog, lists = training.catalog, []
    for start in range(0, len(prompts), _BLOCK):
        block = np.array(scores(slice(start, start + _BLOCK), **settings), dtype=np.float64)
        for own, row in zip(block, prompts[start : start + _BLOCK], strict=True):
            own[list(catalog.indices_of_titles(row["seen_titles"]))] = -np.inf
        for own, top in zip(block, best_items(block, training.counts, training.options.size), strict=True):
            lists.append(format_list([str(catalog.items[index]) for index in top if own[index] > -np.inf]))
    return lists
