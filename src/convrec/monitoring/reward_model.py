"""A model of the acceptance probability q(x, item, rank), for the doubly robust estimate."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

FOLDS = 5
_PRIOR = 10.0  # slots: an item's rate is that of all items until it was shown often


class Shown(NamedTuple):
    """Items at ranks of answers. Shape: (S,) each.

    `answer` is an answer's index, `item` a number of the item, `rank` from 1, `cosine` the similarity of conversation
    and item.
    """

    answer: np.ndarray
    item: np.ndarray
    rank: np.ndarray
    cosine: np.ndarray


def _features(shown: Shown, log_odds: np.ndarray) -> np.ndarray:
    return np.column_stack([np.log(shown.rank), log_odds[shown.item], shown.cosine])


def predict_acceptance(
    logged: Shown, accepted: np.ndarray, asked: Shown, persons: Sequence[str], num_items: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return q for the logged slots and for the slots of another policy's lists. Shape: (S,) and (T,).

    q is a logistic regression on the logarithm of the rank, the log-odds of the item's smoothed acceptance rate, and
    the cosine. Each answer's values come from a model of other persons' answers (cross-fitting in five folds), so that
    q is independent of the rewards that it is compared with.
    """
    codes = np.unique(np.asarray(persons), return_inverse=True)[1]
    fold_of_person = np.random.default_rng(seed).permutation(int(codes.max()) + 1) % FOLDS
    fold = fold_of_person[codes]  # (A,)
    ours, theirs = np.zeros(len(logged.answer)), np.zeros(len(asked.answer))
    for number in range(FOLDS):
        rest, own = fold[logged.answer] != number, fold[asked.answer] == number
        held = ~rest
        reward = accepted[rest]
        if not rest.any() or reward.min() == reward.max():  # nothing to distinguish
            ours[held] = theirs[own] = float(reward.mean()) if rest.any() else 0.0
            continue
        part = Shown(*(column[rest] for column in logged))
        shown, liked = (
            np.bincount(part.item, weights=weights, minlength=num_items) for weights in (np.ones(len(reward)), reward)
        )
        rate = (liked + _PRIOR * reward.mean()) / (shown + _PRIOR)
        log_odds = np.log(rate) - np.log1p(-rate)
        model = LogisticRegression(max_iter=1000).fit(_features(part, log_odds), reward)
        for target, slots, mine in ((ours, logged, held), (theirs, asked, own)):
            if mine.any():
                some = Shown(*(column[mine] for column in slots))
                target[mine] = model.predict_proba(_features(some, log_odds))[:, 1]
    return ours, theirs
