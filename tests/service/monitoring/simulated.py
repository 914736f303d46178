"""Feedback of the embedded world's users, who are answered by a model that learned the popularity before the shift."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from convrec.data.sources.dialogue import write_conversation
from convrec.data.sources.synthetic import SHIFT_MONTH, World, _plackett_luce, embedded_catalog, make_request
from convrec.service.feedback.records import Answer, Event
from tests.answers import make_answer
from tests.rows import make_row

START = datetime(2022, 3, 7, tzinfo=UTC)  # of the first week that is served
WEEK = timedelta(days=7)
LENGTH = 10  # items in a list
SWAY = 1.5  # the mean weight of popularity in a user's utility
MONTHS = SHIFT_MONTH + 3


class Simulation:
    """The world of a seed; everything follows from it."""

    def __init__(self, seed: int):
        self.catalog = embedded_catalog()
        self.world = World(self.catalog, seed, MONTHS)
        self._stale = self.world.popularity[:SHIFT_MONTH].mean(axis=0)
        self._rng = np.random.default_rng([seed, 9])

    def _ask(self, month: int) -> tuple[list[dict[str, str]], list[int], list[int], list[int]]:
        """Return a conversation, the films that it names and those that its user would accept, and the list."""
        rng, titles = self._rng, [item.title for item in self.catalog.items]
        taste = self.world.draw_taste(rng, month)
        utility = self.world.utility(taste)
        named = sorted(_plackett_luce(rng, utility, int(rng.integers(0, 4))).tolist())
        messages = write_conversation(rng, make_request(rng, taste, [titles[item] for item in named]))
        known = self.world.affinity(taste) + SWAY * self._stale
        utility[named] = known[named] = -np.inf
        liked = _plackett_luce(rng, utility, int(rng.integers(6, 11))).tolist()
        return messages, named, liked, np.argsort(-known, kind="stable")[:LENGTH].tolist()

    def training(self, number: int) -> list[dict[str, Any]]:
        """Return canonical rows of the months before the shift."""
        rows, items = [], self.catalog.items
        for place in range(number):
            messages, named, liked, _ = self._ask(place % SHIFT_MONTH)
            truths, seen = [(items[item].title, items[item].year) for item in liked], [items[i].title for i in named]
            rows.append(make_row(f"t{place}", truths, messages=messages, seen_titles=seen, date="2022-02-01"))
        return rows

    def week(self, number: int, month: int, num_answers: int) -> tuple[list[Answer], list[Event]]:
        """Return the answers of one week, in which the popularity is that of `month`, and what users accepted."""
        answers, events = [], []
        for place in range(num_answers):
            (messages, _, liked, listed), time = self._ask(month), START + number * WEEK + place * (WEEK / num_answers)
            ids = [self.catalog.items[item].id for item in listed]
            own = {"latency_seconds": float(self._rng.gamma(4, 0.05)), "messages": messages}
            one = make_answer(*ids, time=time, version="1", user_id=f"u{number}-{place // 2}", **own)
            answers.append(one)
            events += [
                Event(f"{one.answer_id}-{rank}", one.answer_id, "", item, "accepted", time)
                for rank, item in enumerate(ids)
                if listed[rank] in liked
            ]
        return answers, events
