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

_SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of the weights that suit the evidence alone; 16 all but silences a model
_FACTORS = (0.0, 0.5, 2.0)  # of one weight
_FIRST = 0.25  # what is tried for a weight of 0
_LEAST_GAIN = 1e-3  # of NDCG: less is noise


class GuidanceFit(NamedTuple):
    """The weights, and the mean NDCG of the model's lists with them and without guidance."""

    weights: dict[str, float]
    ndcg: float
    unguided: float


def fit_guidance(evidence: Evidence, model: Path, evaluation: Evaluation) -> GuidanceFit:
    """Return the weights with which a model's greedy lists have the best NDCG on the rows of the evaluation.

    The weights of the evidence alone give a direction; its scale is chosen first, and then each weight is changed once.
    Weights are kept only where they gain, so useless evidence gets none.
    """
    prompts, catalog = evaluation.prompts, evaluation.catalog
    terms = evidence.terms(prompts, without_own=False, earlier=False)
    positives, size = count_positives(evaluation.rows, prompts, catalog), evaluation.settings.list_length
    closed = closed_items(prompts, catalog, size)
    alone = fit_weights(terms, {}, positives, closed, np.arange(len(prompts)), size).values
    with evaluation.of_guided(model) as scored:

        def ndcg(tried: Sequence[Mapping[str, float]]) -> list[float]:
            totals = [WeightedSum([terms[kind] for kind in own], list(own.values())) for own in tried]
            guides = [as_log_weights(total, evidence.kept) for total in totals]
            found = [float(lists.scores[evaluation.headline].mean()) for lists in scored(*guides)]
            for own, value in zip(tried, found, strict=True):
                shown = ", ".join(f"{kind} {own[kind]:.3g}" for kind in EVIDENCE)
                logger.info("guidance: %s %.4f with %s", evaluation.headline, value, shown)
            return found

        weights = dict.fromkeys(EVIDENCE, 0.0)
        scaled = [{kind: scale * weight for kind, weight in alone.items()} for scale in _SCALES if any(alone.values())]
        unguided, *found = ndcg([weights, *scaled])
        best = unguided
        for tried, value in zip(scaled, found, strict=True):
            if value > best + _LEAST_GAIN:
                weights, best = tried, value
        for kind in EVIDENCE if any(weights.values()) else ():
            values = [factor * weights[kind] for factor in _FACTORS] if weights[kind] else [_FIRST]
            changed = [{**weights, kind: value} for value in values]
            for tried, value in zip(changed, ndcg(changed), strict=True):
                if value > best + _LEAST_GAIN:
                    weights, best = tried, value
    return GuidanceFit(weights, best, unguided)
