"""The terms of a conversation's scores: Remap, the teacher's ratings and collaborative evidence."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from convrec.data.catalog import Catalog
from convrec.data.conversations import is_before
from convrec.data.parsing import format_list
from convrec.demonstrations.combine import Weights, fit_weights
from convrec.demonstrations.demonstrator import Grounded
from convrec.demonstrations.evidence import EVIDENCE, Evidence
from convrec.demonstrations.prompts import seen_items
from convrec.similarity.scores import Blocks, WeightedSum, sparse_scores, top_items

logger = logging.getLogger(__name__)

Row = dict[str, Any]
REFLECTED = {"remap": 1.0, "ratings": 1.0}  # the weights of s_reflect


class Combined(NamedTuple):
    """The terms of each split's scores, and the weights of their sum."""

    terms: dict[str, dict[str, Blocks]]
    weights: Weights

    def scores(self, split: str) -> Blocks:
        terms = self.terms[split]
        return WeightedSum(list(terms.values()), [self.weights.values[name] for name in terms])


def combine(
    grounded: dict[str, Grounded],
    rows: dict[str, list[Row]],
    positives: sparse.csr_array,
    fitted: np.ndarray,
    catalog: Catalog,
    evidence_of: Callable[[list[Row]], Evidence] | None,
    list_length: int,
    device: str,
) -> Combined:
    """Return the scores with collaborative evidence, with the weights that suit the `fitted` training prompts best.

    `evidence_of` makes the evidence of the training rows. A training prompt's own person gives no evidence about it.
    Where all of training is before validation, neither does what is not of an earlier month. Validation prompts have
    all of training. With None as `evidence_of` the sum is s_reflect.
    """
    terms: dict[str, dict[str, Blocks]] = {
        name: {"remap": split.remapped.scores, "ratings": sparse_scores(split.reflected.ratings, device)}
        for name, split in grounded.items()
    }
    if evidence_of is None:
        return Combined(terms, Weights(REFLECTED, None, None))
    evidence = evidence_of(rows["train"])
    earlier = is_before(rows["train"], rows["validation"])
    for name, split in grounded.items():
        logger.info("%s: what others liked", name)
        is_train = name != "validation"  # train, and its variants
        terms[name] |= evidence.terms(split.prompts, without_own=is_train, earlier=is_train and earlier)
    seen = seen_items(grounded["train"].prompts, catalog)
    return Combined(terms, fit_weights(terms["train"], REFLECTED, positives, seen, fitted, list_length))


def list_texts(top: np.ndarray, catalog: Catalog) -> list[str]:
    """Return the lists of these items, best first; -1 is none. Shape: top (prompts, N)."""
    return [format_list([str(catalog.items[i]) for i in row if i >= 0]) for row in top.tolist()]


def evidence_lists(
    terms: dict[str, Blocks], prompts: list[Row], catalog: Catalog, list_length: int
) -> dict[str, list[str]]:
    """Return the lists of each kind of collaborative evidence alone; nothing without the evidence."""
    if "popularity" not in terms:
        return {}
    seen, found = seen_items(prompts, catalog), {}
    for name in EVIDENCE:
        scores = WeightedSum([terms[name], terms["popularity"]], [1.0, 1e-6])  # equal ones go by popularity
        found[name] = list_texts(top_items(scores, list_length, seen)[0], catalog)
    return found
