"""The weight of the guide beside a model, fitted to the lists themselves."""

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from convrec.classical.guidance import Guidance, as_log_weights
from convrec.classical.scores import WeightedSum
from convrec.evaluation.evaluation import Evaluation

logger = logging.getLogger(__name__)

# Guide and model are log-probabilities, so 1 suits two that are calibrated; 8 all but silences a model.
_FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)


class GuidanceFit(NamedTuple):
    """What the guide's log weights are multiplied by, and the mean NDCG of the model's lists with it and without it."""

    factor: float
    ndcg: float
    unguided: float


def fit_guidance(guide: Guidance, model: Path, evaluation: Evaluation) -> GuidanceFit:
    """Return the factor of the guide with which a model's greedy lists have the best NDCG on the evaluation's rows.

    It rises only for a mean gain above its standard error, so a useless guide gets no weight, and a model that is as
    good with a smaller factor keeps more to say.
    """
    terms = [guide.total(evaluation.prompts, asked_first=False), guide.evidence.firsts(evaluation.prompts)]
    with evaluation.of_guided(model) as scored:
        sums = [WeightedSum(terms, [factor, float(factor > 0)]) for factor in (0.0, *_FACTORS)]
        guides = [as_log_weights(own, guide.evidence.kept) for own in sums]
        found = [lists.scores[evaluation.headline].to_numpy(float) for lists in scored(*guides)]
    chosen, unguided = 0.0, found[0]
    best = unguided
    for factor, values in zip((0.0, *_FACTORS), found, strict=True):
        logger.info("guidance: %s %.4f with a factor of %g", evaluation.headline, values.mean(), factor)
        gains = values - best
        if gains.mean() > gains.std() / np.sqrt(len(gains)):
            chosen, best = factor, values
    return GuidanceFit(chosen, float(best.mean()), float(unguided.mean()))
