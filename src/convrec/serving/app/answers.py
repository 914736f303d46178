"""Answers to the questions of `convrec app`: the lists of its models, with reasons."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, ConfigDict

from convrec.data.catalog import Item
from convrec.errors import InputError
from convrec.serving.examples import example_requests
from convrec.serving.feedback import FeedbackLog
from convrec.serving.reasons import Reasons, genres_of
from convrec.serving.recommendation import RecommendedList
from convrec.serving.recommender import LIST_LENGTH, Messages, Recommender, messages_from

logger = logging.getLogger(__name__)


class Question(BaseModel):
    """A request: a conversation as text or as messages, and options of the list."""

    model_config = ConfigDict(extra="forbid", strict=True)

    conversation: str | None = None
    messages: list[dict[str, Any]] | None = None
    n: int = LIST_LENGTH
    deny: list[str] = []
    allow: list[str] | None = None
    or_fewer: bool = False


class Answers:
    """Asks one or two models, and records what they answered."""

    def __init__(self, models: Mapping[str, Recommender], feedback: FeedbackLog | None):
        self._models, self._feedback = models, feedback
        self._reasons = {name: Reasons(model.catalog, model.mentions) for name, model in models.items()}

    def examples(self) -> list[str]:
        """Return example requests for the first model's catalog."""
        name, model = next(iter(self._models.items()))
        return example_requests(model.catalog, self._reasons[name], model.noun)

    def ask(self, question: Question, is_abandoned: Callable[[], bool]) -> dict[str, Any]:
        """Return the models' lists, and the answer's id if it was recorded.

        Raises `InputError` for input that `Recommender.recommend` rejects.
        """
        if (question.conversation is None) == (question.messages is None):
            raise InputError("conversation, messages: give exactly one of the two")
        said: Any = question.messages if question.conversation is None else question.conversation
        self._check_titles(question)
        lists = {name: self._list(name, said, question, is_abandoned) for name in self._models}
        messages = messages_from(said)
        items = {name: self._items(name, listed) for name, listed in lists.items()}
        return {
            "answer_id": self._record(items, messages),
            "models": [
                {"name": name, "recommendations": self._explained(name, lists[name], items[name], messages)}
                for name in self._models
            ],
        }

    def _check_titles(self, question: Question) -> None:
        """Raise `InputError` for a title that is in no model's catalog; the models may have different catalogs."""
        models = list(self._models.values())
        for field, titles in (("deny", question.deny), ("allow", question.allow or [])):
            for title in titles:
                if not any(model.knows(title) for model in models):
                    models[0].check_titles(field, [title])

    def _list(self, name: str, said: Any, question: Question, is_abandoned: Callable[[], bool]) -> RecommendedList:
        model = self._models[name]
        deny = list(filter(model.knows, question.deny))
        allow = None if question.allow is None else list(filter(model.knows, question.allow))
        try:
            return model.recommend([said], question.n, deny, allow, is_abandoned, question.or_fewer)[0]
        except InputError as error:
            raise InputError(f"{name}: {error}") from None

    def _items(self, name: str, listed: RecommendedList) -> list[Item]:
        catalog = self._models[name].catalog
        indices = catalog.indices_of_lines(map(str, listed))
        return [catalog.items[index] for index in indices if index is not None]

    def _explained(
        self, name: str, listed: RecommendedList, items: Sequence[Item], messages: Messages
    ) -> list[dict[str, Any]]:
        reasons = self._reasons[name].of(items, messages)
        return [
            {**asdict(recommendation), "item_id": item.id, "genres": ", ".join(genres_of(item)), "reasons": own}
            for recommendation, item, own in zip(listed, items, reasons, strict=True)
        ]

    def _record(self, items: Mapping[str, Sequence[Item]], messages: Messages) -> str | None:
        if self._feedback is None:
            return None
        try:
            return self._feedback.add_answer({name: [item.id for item in own] for name, own in items.items()}, messages)
        except OSError as error:  # a full disk costs the feedback, never the answer
            logger.warning("%s: the answer was not recorded (%s)", self._feedback.path, error.strerror)
            return None
