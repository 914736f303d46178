"""The weights of evidence that guides a model's lists, fitted to the lists themselves."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convrec.classical.combine import closed_items, count_positives, fit_weights
from convrec.classical.evidence import EVIDENCE, Evidence
from convrec.classical.guidance import as_log_weights
from convrec.classical.scores import WeightedSum
from convrec.evaluation.evaluation import Evaluation

logger = logging.getLogger(__name__)

# Of the weights that suit the evidence alone; 16 all but silences a model.
_SCALES = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0)


class GuidanceFit(NamedTuple):
    """The weights, and the mean NDCG of the model's lists with them and without guidance."""

    weights: dict[str, float]
    ndcg: float
    unguided: float


def fit_guidance(evidence: Evidence, model: Path, evaluation: Evaluation) -> GuidanceFit:
    """Return the weights with which a model's greedy lists have the best NDCG on the rows of the evaluation.

    The weights of the evidence alone are scaled by one number. It rises only for a mean gain above its standard error,
    so useless evidence gets no weight, and a model that is as good with smaller weights keeps more to say.
    """
    prompts, catalog = evaluation.prompts, evaluation.catalog
    terms = evidence.terms(prompts, without_own=False, earlier=False)
    positives, size = count_positives(evaluation.rows, prompts, catalog), evaluation.settings.list_length
    closed = closed_items(prompts, catalog, size)
    alone = fit_weights(terms, {}, positives, closed, np.arange(len(prompts)), size).values
    with evaluation.of_guided(model) as scored:

        def ndcg(tried: Sequence[Mapping[str, float]]) -> list[np.ndarray]:
            totals = [WeightedSum([terms[kind] for kind in own], list(own.values())) for own in tried]
            guides = [as_log_weights(total, evidence.kept) for total in totals]
            found = [lists.scores[evaluation.headline].to_numpy(float) for lists in scored(*guides)]
            for own, values in zip(tried, found, strict=True):
                shown = ", ".join(f"{kind} {own[kind]:.3g}" for kind in EVIDENCE)
                logger.info("guidance: %s %.4f with %s", evaluation.headline, values.mean(), shown)
            return found

        weights = dict.fromkeys(EVIDENCE, 0.0)
        scaled = [{kind: scale * weight for kind, weight in alone.items()} for scale in _SCALES if any(alone.values())]
        unguided, *found = ndcg([weights, *scaled])
        best = unguided
        for tried, values in zip(scaled, found, strict=True):
            if _is_better(values, best):
                weights, best = tried, values
    return GuidanceFit(weights, float(best.mean()), float(unguided.mean()))


def _is_better(values: np.ndarray, best: np.ndarray) -> bool:
    gains = values - best
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))
