"""What all routes of the service share: limits, models, metrics, and the record of answers."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from convrec.project.errors import InputError
from convrec.service.app.metrics import Metrics
from convrec.service.arms import Experiment
from convrec.service.feedback import Answer, FeedbackRecorder
from convrec.service.live import LiveModels
from convrec.service.routing import Ask, Routed, is_ready, route
from convrec.service.served import Answered, ServedModel
from convrec.service.translation import LIST_LENGTH, NoList, NothingLeft

_REMEMBERED = 200  # answers that the speed is measured on
_RECENT = 60.0  # seconds; older ones say little about the speed now
_LONGEST_WAIT = 60  # seconds that a client is told to wait
_CLIENT_LEFT = 499  # nginx's status for it; nobody receives it, but logs and metrics have it

Result = TypeVar("Result")
Roles = Mapping[str, ServedModel]


class Question(BaseModel):
    """A request: a conversation as text or as messages, and options of the list."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: str | None = None
    messages: list[dict[str, Any]] | None = None
    n: int = LIST_LENGTH
    deny: list[str] = []
    allow: list[str] | None = None
    or_fewer: bool = False
    user_id: str | None = Field(None, min_length=1, max_length=200)
    scores: bool = False
    deadline_seconds: float | None = Field(None, gt=0, strict=False)

    @property
    def said(self) -> Any:
        """The conversation. Raises `InputError` unless there is exactly one."""
        if (self.conversation is None) == (self.messages is None):
            raise InputError("conversation, messages: give exactly one of the two")
        return self.messages if self.conversation is None else self.conversation


@dataclass(frozen=True)
class Limits:
    """How much a service takes on."""

    max_requests: int = 192  # waiting or being decoded; more get 429
    max_seconds: float = 60.0  # of a request; `deadline_seconds` may lower it


class Service:
    """Answers questions with the current models, within the limits."""

    def __init__(
        self,
        models: LiveModels,
        limits: Limits,
        metrics: Metrics,
        recorder: FeedbackRecorder | None,
        experiment: Callable[[], Experiment | None] = lambda: None,
    ):
        """`experiment` returns the running experiment."""
        self.models, self.limits, self.metrics, self.recorder = models, limits, metrics, recorder
        self._experiment = experiment
        self._num_inside = 0  # requests between their arrival and their answer
        self._ends: deque[float] = deque(maxlen=_REMEMBERED)
        metrics.watch("requests_inside", "Requests that wait or are decoded", lambda: self._num_inside)
        metrics.watch("waiting_lists", "Lists that wait for the batch", lambda: self._sum("num_waiting"))
        metrics.watch("running_lists", "Lists that are decoded", lambda: self._sum("num_running"))
        metrics.watch("experiment_running", "1 while an experiment is running", lambda: self._experiment() is not None)
        metrics.watch("experiment_ready", "1 while both of its versions are loaded", self._is_experiment_ready)
        if recorder is not None:
            metrics.watch("feedback_backlog", "Records not in the database yet", lambda: recorder.backlog)

    def _sum(self, name: str) -> int:
        return sum(getattr(model.decoder, name) for model in set(self.models.roles.values()))

    def _is_experiment_ready(self) -> bool:
        experiment = self._experiment()
        return experiment is not None and is_ready(experiment, self.models.roles)

    async def within_limits(
        self, question: Question, request: Request, ask: Callable[[Roles], Awaitable[Result]]
    ) -> Result:
        """Return what `ask` returns for the models by role, which stay loaded until then.

        Answers 429 if too many requests are waiting, and 504 after the deadline. Then, and when the client has left,
        nothing is computed further. Raises `Unavailable` if there is no model.
        """
        seconds = min(question.deadline_seconds or self.limits.max_seconds, self.limits.max_seconds)
        with self._admitted(), self.models.using() as roles:
            answer = asyncio.ensure_future(ask(roles))
            departure = asyncio.create_task(_departure(request))
            both: set[asyncio.Future[Any]] = {answer, departure}
            try:
                await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    return answer.result()
                if departure.done():
                    raise HTTPException(_CLIENT_LEFT, "the client has left")
                reason = f"there was no answer within {seconds:g} s; try again later, or with fewer items"
                raise HTTPException(504, reason)
            finally:
                answer.cancel()
                departure.cancel()

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        """Count a request during the block, if there is room."""
        now = time.monotonic()
        if self._num_inside >= self.limits.max_requests:
            # The time until half of the requests inside are answered at the measured speed.
            recent = [end for end in self._ends if end > now - _RECENT]
            seconds = (now - recent[0]) / len(recent) * self._num_inside / 2 if recent else 1.0
            wait = min(max(math.ceil(seconds), 1), _LONGEST_WAIT)
            reason = f"too many requests are waiting; try again in {wait} s"
            raise HTTPException(429, reason, {"Retry-After": str(wait)})
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            self._ends.append(time.monotonic())

    async def list_of(self, model: ServedModel, question: Question, with_scores: bool) -> Answered:
        """Return a model's list. Raises `InputError` for input that `Recommender.recommend` rejects."""
        if with_scores and not model.has_scores:
            raise InputError("scores: this engine does not compute them; leave it out")
        options = (question.n, question.deny, question.allow, question.or_fewer, with_scores)
        try:
            answered = await model.ask(question.said, *options)
        except NothingLeft:
            self.metrics.empty_answers.labels(model.version).inc()
            raise
        except NoList:
            self.metrics.constraint_failures.labels(model.version).inc()
            raise
        self.metrics.answers.labels(model.version).inc()
        self.metrics.tokens.inc(answered.num_tokens)
        return answered

    async def route(self, roles: Roles, user_id: str | None, answer_id: str, ask: Ask) -> Routed:
        """Return the list of the user's arm in the running experiment, else that of the first model (see `route`)."""
        failures = self.metrics.experiment_failures
        routed = await route(self._experiment(), roles, user_id, answer_id, ask, on_failure=failures.inc)
        if routed.arm is not None:
            self.metrics.experiment_answers.labels(routed.arm).inc()
        return routed

    async def record(self, answer: Answer) -> str | None:
        """Record an answer, and return its id; None if it was not recorded. Does not wait for the database."""
        if self.recorder is None:
            return None
        is_recorded = await asyncio.to_thread(self.recorder.add_answer, answer)
        return answer.answer_id if is_recorded else None


async def _departure(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
