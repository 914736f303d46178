"""The budget of all chat calls, and reservations that keep calls in flight within it."""

import asyncio
import math
from dataclasses import dataclass

from convrec.demonstrations.calls import Spent

BYTES_PER_TOKEN = 3  # a cautious estimate: English has about 4


@dataclass(frozen=True)
class Budget:
    """Limits on all calls ever recorded in a file, and prices per million tokens in any currency."""

    max_tokens: int | None
    max_cost: float | None
    prompt_price: float
    completion_price: float

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


def estimated_tokens(text: str) -> int:
    """Return about how many tokens a text has, from its bytes in UTF-8."""
    return math.ceil(len(text.encode()) / BYTES_PER_TOKEN)


class Ledger:
    """A budget in use: the amount spent, and the amount reserved for calls in flight. For one event loop.

    Calls in flight are counted in whole tokens, so that reserving and settling leave no rounding behind.
    """

    def __init__(self, budget: Budget, spent: Spent):
        self._budget = budget
        self.tokens = spent.prompt_tokens + spent.completion_tokens
        self.cost = spent.cost
        self._reserved = (0, 0)
        self._in_flight = 0
        self._settled = asyncio.Event()

    def limit_for(self, prompt_tokens: int, completion_tokens: int) -> str | None:
        """Return the name of the limit that one more call would break, or None."""
        prompt, completion = self._reserved[0] + prompt_tokens, self._reserved[1] + completion_tokens
        budget = self._budget
        if budget.max_tokens is not None and self.tokens + prompt + completion > budget.max_tokens:
            return "max_tokens"
        if budget.max_cost is not None and self.cost + budget.cost(prompt, completion) > budget.max_cost:
            return "max_cost"
        return None

    async def reserve(self, prompt_tokens: int, completion_tokens: int) -> str | None:
        """Reserve for one call, waiting for others while it does not fit.

        Returns the name of the limit, and reserves nothing, if it does not fit and no call is in flight.
        """
        while (limit := self.limit_for(prompt_tokens, completion_tokens)) is not None:
            if not self._in_flight:
                return limit
            await self._settled.wait()
        self._reserved = (self._reserved[0] + prompt_tokens, self._reserved[1] + completion_tokens)
        self._in_flight += 1
        return None

    def spend(self, prompt_tokens: int, completion_tokens: int, cost: float) -> None:
        """Count what a call really took."""
        self.tokens += prompt_tokens + completion_tokens
        self.cost += cost

    def settle(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Return one call's reservation, and wake the waiting calls."""
        self._reserved = (self._reserved[0] - prompt_tokens, self._reserved[1] - completion_tokens)
        self._in_flight -= 1
        self._settled.set()
        self._settled = asyncio.Event()
