"""What all routes of the service share: limits, models, metrics, and the record of answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from convrec.data.titles import LONGEST_TITLE, usable_user
from convrec.project.errors import InputError
from convrec.service.app.edge import RETRY
from convrec.service.app.metrics import Metrics
from convrec.service.arms import CHALLENGER, CHAMPION, Experiment, arm_of
from convrec.service.feedback import Answer, FeedbackRecorder, Shown, new_answer_id
from convrec.service.live import LiveModels
from convrec.service.served import Answered, ServedModel
from convrec.service.translation import LIST_LENGTH, NoList, NothingLeft, messages_from

logger = logging.getLogger(__name__)

OPTIONS = {"n", "deny", "allow", "or_fewer", "reasons", "wishes"}  # of a list
MAX_CHARACTERS, MAX_MESSAGES = 50_000, 1_000  # of a conversation: one is read at a time, and the others wait
_CLIENT_LEFT = 499  # nginx's status for it; nobody receives it, but logs and metrics have it

Result = TypeVar("Result")
Roles = Mapping[str, ServedModel]
Title = Annotated[str, Field(max_length=LONGEST_TITLE)]


class Question(BaseModel):
    """A request: a conversation as text or as messages, and options of the list."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: str | None = None
    messages: list[dict[str, Any]] | None = None
    n: int = LIST_LENGTH
    deny: list[Title] = []
    allow: list[Title] | None = None
    or_fewer: bool = False
    reasons: bool = False
    wishes: dict[str, bool] = {}
    user_id: str | None = Field(None, max_length=200)

    @field_validator("user_id")
    @classmethod
    def _somebody(cls, given: str | None) -> str | None:
        return usable_user(given) or None

    @model_validator(mode="after")
    def _short(self) -> Self:
        texts = [self.conversation or "", *(str(message.get("content", "")) for message in self.messages or ())]
        if (size := sum(map(len, texts))) > MAX_CHARACTERS or len(texts) - 1 > MAX_MESSAGES:
            raise HTTPException(
                413,
                f"conversation, messages: {size:,} characters, {len(texts) - 1:,} messages; send at most "
                f"{MAX_CHARACTERS:,} characters, {MAX_MESSAGES:,} messages: leave out the oldest ones",
            )
        return self

    @property
    def said(self) -> Any:
        """The conversation. Raises `InputError` unless there is exactly one."""
        if (self.conversation is None) == (self.messages is None):
            raise InputError("conversation, messages: give exactly one of the two")
        return self.messages if self.conversation is None else self.conversation


class Routed(NamedTuple):
    """A list, and the version that wrote it.

    `experiment`, its id, and `arm` are None if the answer does not count for an experiment.
    """

    answered: Answered
    version: str
    experiment: str | None = None
    arm: str | None = None


@dataclass(frozen=True)
class Limits:
    """How much a service takes on."""

    max_requests: int = 192  # waiting or being decoded; more get 429
    max_seconds: float = 60.0  # of a request


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
        metrics.watch("requests_inside", "Requests that wait or are decoded", lambda: self._num_inside)
        metrics.watch("experiment_running", "1 while an experiment is running", lambda: experiment() is not None)
        text = "1 while both of its versions are loaded"
        metrics.watch("experiment_ready", text, lambda: self._ready_experiment(models.versions) is not None)
        if recorder is not None:
            metrics.watch("feedback_backlog", "Records not in the database yet", lambda: recorder.backlog)

    def _ready_experiment(self, versions: Mapping[str, str]) -> Experiment | None:
        """Return the running experiment if its versions are loaded."""
        experiment = self._experiment()
        return experiment if experiment is not None and experiment.is_served(versions) else None

    async def within_limits(self, request: Request, ask: Callable[[Roles], Awaitable[Result]]) -> Result:
        """Return what `ask` returns for the models by role.

        Answers 429 if too many requests are waiting, and 504 after `max_seconds`. Then, and when the client has left,
        `ask` is cancelled. Raises `Unavailable` if there is no model.
        """
        if self._num_inside >= self.limits.max_requests:
            raise HTTPException(429, "too many requests are waiting; try again later", RETRY)
        seconds = self.limits.max_seconds
        answer = asyncio.ensure_future(ask(self.models.current()))
        departure = asyncio.create_task(_departure(request))
        both: set[asyncio.Future[Any]] = {answer, departure}
        self._num_inside += 1
        try:
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if departure.done():
                raise HTTPException(_CLIENT_LEFT, "the client has left")
            raise HTTPException(504, f"there was no answer within {seconds:g} s; try again later, or with fewer items")
        finally:
            self._num_inside -= 1
            answer.cancel()
            departure.cancel()

    async def list_of(self, model: ServedModel, question: Question) -> Answered:
        """Return a model's list: without items if none are left and the question asks for `or_fewer`.

        Raises `InputError` for other input that `Recommender.recommend` rejects.
        """
        try:
            answered = await model.ask(question.said, **question.model_dump(include=OPTIONS))
        except NothingLeft:
            self.metrics.empty_answers.labels(model.version).inc()
            if not question.or_fewer:
                raise
            return Answered(messages_from(question.said), [])
        except NoList:
            self.metrics.constraint_failures.labels(model.version).inc()
            raise
        self.metrics.answers.labels(model.version).inc()
        return answered

    async def route(self, roles: Roles, question: Question, answer_id: str) -> Routed:
        """Return the list of the user's arm in the running experiment, else that of the first model.

        While a version of the experiment is not loaded, the answer does not count for it. What the arm's model fails
        on or rejects, or has not answered when the request is cancelled, counts as an answer without items; what both
        models reject counts for neither.
        """
        champion = next(iter(roles.values()))
        experiment = self._ready_experiment({role: model.version for role, model in roles.items()})
        if experiment is None:
            return Routed(await self.list_of(champion, question), champion.version)
        arm, began = arm_of(experiment, question.user_id, answer_id), datetime.now(UTC)
        model = roles[arm]
        try:
            answered = await self.list_of(model, question)
        except BaseException as error:  # also cancelled: too late, or the client has left
            is_wrong = isinstance(error, Exception) and await self._is_wrong(question, roles)
            if not is_wrong:
                self.metrics.experiment_answers.labels(arm).inc()
                # An answer without items: what an arm owed a user also counts for the experiment.
                await self.record(began, new_answer_id(began), question.user_id, [], experiment.id, arm)
            if arm == CHAMPION or not isinstance(error, Exception):
                raise
            answered = await self.list_of(champion, question)
            logger.error("version %s failed on a question that the champion answers: %s", model.version, error)
            self.metrics.experiment_failures.inc()
            return Routed(answered, champion.version)
        self.metrics.experiment_answers.labels(arm).inc()
        return Routed(answered, model.version, experiment.id, arm)

    async def _is_wrong(self, question: Question, roles: Roles) -> bool:
        """Return whether the models of both arms reject a question."""
        for role in (CHAMPION, CHALLENGER):
            try:
                await roles[role].prepare(question.said, **question.model_dump(include=OPTIONS - {"reasons"}))
                return False
            except InputError as error:
                if isinstance(error, NothingLeft) and question.or_fewer:
                    return False
            except Exception:  # it fails, which counts in its own arm
                return False
        return True

    async def record(
        self,
        began: datetime,
        answer_id: str,
        user_id: str | None,
        lists: Sequence[tuple[str, str, Answered]],
        experiment: str | None = None,
        arm: str | None = None,
    ) -> str | None:
        """Record an answer, and return its id; None if it was not recorded. Does not wait for the database.

        `lists` has the name of each list within the answer, and the version that wrote it; a lost answer has none.
        """
        if self.recorder is None:
            return None
        answer = Answer(
            answer_id=answer_id,
            time=began,
            user_id=user_id,
            experiment=experiment,
            arm=arm,
            latency_seconds=(datetime.now(UTC) - began).total_seconds(),
            messages=lists[0][2].messages if lists else None,
            shown=tuple(
                Shown(name, rank, item.id, version)
                for name, version, listed in lists
                for rank, item in enumerate(listed.items, start=1)
            ),
        )
        return answer_id if await asyncio.to_thread(self.recorder.add_answer, answer) else None


async def _departure(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
