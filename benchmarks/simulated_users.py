"""The users of the embedded world, who talk to a running service: what they ask, look at and accept.

A user has an id, a weight of popularity and a part of taste that is never put into words. Every day the user wants
something else: a taste is drawn as for the embedded conversations. The user asks for it, looks at the list from the
top, and goes on from each rank to the next with probability `PATIENCE` (the user model of rank-biased precision; Moffat
and Zobel, 2008). The films that would please are drawn as the accepted films of the embedded conversations: 6 to 10,
without replacement, in proportion to exp(utility). The user accepts those of them that were looked at.

What a user wants on a day depends only on the seed, the user and the date, not on the lists, so that two simulations
with different models have the same users.
"""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

import numpy as np

from convrec.data.sources.dialogue import write_conversation
from convrec.data.sources.synthetic import (
    FIRST_MONTH,
    HIDDEN_SIZE,
    SHIFT_MONTH,
    SWAY,
    World,
    _plackett_luce,
    embedded_catalog,
    make_request,
)
from convrec.project.config.params import Params

PATIENCE = 0.9  # probability of looking at the next rank
_NUM_LIKED = (6, 11)  # films that please: from, to (exclusive)
_SECONDS = 86_400  # of a day


@dataclass(frozen=True)
class Visit:
    """What a user does on one day: the request, the first ranks that are looked at, and the films that would please."""

    user_id: str
    time: datetime
    messages: list[dict[str, str]]
    num_examined: int
    liked: frozenset[str]  # items' ids

    def accepted(self, item_ids: list[str]) -> list[str]:
        """Return the items of a list that the user accepts, best first."""
        return [item for item in item_ids[: self.num_examined] if item in self.liked]


class Audience:
    """The users of the embedded world of `params`, whose films `catalog` has.

    The popularity of a day is that of its month, and after the world's last month that of the last one. With
    `shift_date`, it is that of the last month of the old audience before this day, and that of the first month of the
    new audience from this day on (`synthetic.SHIFT_MONTH`).
    """

    def __init__(self, params: Params, seed: int, shift_date: date | None = None):
        self.catalog = embedded_catalog()
        synthetic = params.data.synthetic
        self.world = World(self.catalog, params.common.seed, synthetic.num_months)
        self._first = date.fromisoformat(f"{FIRST_MONTH}-01")
        self._seed, self._shift_date = seed, shift_date

    def visits(self, num_users: int, day: date) -> list[Visit]:
        """Return the visits of a day in the order of their times: one for each user."""
        return sorted((self._visit(number, day) for number in range(num_users)), key=lambda visit: visit.time)

    def _month(self, day: date) -> int:
        if self._shift_date is not None:
            return SHIFT_MONTH - (day < self._shift_date)
        months = 12 * (day.year - self._first.year) + day.month - self._first.month
        return min(max(months, 0), len(self.world.popularity) - 1)

    def _visit(self, number: int, day: date) -> Visit:
        person = np.random.default_rng([self._seed, 3, number])
        rng = np.random.default_rng([self._seed, 4, number, day.toordinal()])
        taste = replace(
            self.world.draw_taste(rng, self._month(day)),
            popularity=float(person.uniform(*SWAY)),
            hidden=tuple(person.standard_normal(HIDDEN_SIZE).tolist()),
        )
        utility, items = self.world.utility(taste), self.catalog.items
        mentioned = _plackett_luce(rng, utility, int(rng.integers(0, 4)))
        request = make_request(rng, taste, [items[film].title for film in mentioned])
        utility[mentioned] = -np.inf
        liked = _plackett_luce(rng, utility, int(rng.integers(*_NUM_LIKED)))
        second = timedelta(seconds=int(rng.integers(_SECONDS)))
        return Visit(
            user_id=f"user-{number:05d}",
            time=datetime(day.year, day.month, day.day, tzinfo=UTC) + second,
            messages=write_conversation(rng, request),
            num_examined=int(rng.geometric(1 - PATIENCE)),
            liked=frozenset(items[film].id for film in liked),
        )
