"""Exploration: sometimes a list is shown in random order, so that the effect of a rank can be told from the item's."""

import random
from collections.abc import Sequence
from typing import NamedTuple


class Order(NamedTuple):
    """The order in which a list is shown."""

    places: Sequence[int]  # of the items shown, best first, in the model's list
    propensities: Sequence[float]  # with which the item was shown at its rank
    is_explored: bool


def explored(num: int, share: float, chance: random.Random) -> Order:
    """Return the order of `num` items: with probability `share` a uniformly random one, else the model's own.

    The propensity of an item at rank k is (1 - share)·[its own rank is k] + share / num.
    """
    places = list(range(num))
    is_explored = num > 0 and chance.random() < share
    if is_explored:
        chance.shuffle(places)
    propensities = [(1 - share) * (place == rank) + share / num for rank, place in enumerate(places)]
    return Order(places, propensities, is_explored)
