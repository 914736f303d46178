"""Wishes as a chat model reads them, in any language: the built-in reader takes over where it fails or is late."""

import json
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from convrec.data.catalog import Catalog
from convrec.data.conversations import transcript
from convrec.data.titles import fold, title_and_year
from convrec.data.wish_marks import MINUTES, Value, stem, words_of
from convrec.data.wish_reader import LONGEST_READ, WishReader, is_particular, wish_reader
from convrec.data.wishes import Wish
from convrec.demonstrations.calls import CallStore
from convrec.demonstrations.chat import ChatClient
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

MODEL, URL = "CONVREC_WISHES_MODEL", "CONVREC_WISHES_URL"
SECONDS = 8.0  # for an answer
_PAUSE = 60.0  # seconds after a failure, in which the built-in reader reads at once
_VALUES = 60  # of a column that the model is told, the most frequent ones
_KEPT, _CELLS = 1000, 2**26  # answers in memory, and bytes of the masks of about four wishes each
_LONGEST_ANSWER, _AT_ONCE, _MOST = 1000, 16, 50
_KINDS = ("asked", "excluded", "only", "less", "limit", "liked", "not_again", "unused")
_TEXT, _NUMBER = {"type": "string"}, {"type": ["number", "null"]}
_FIELDS = {"kind": {"enum": list(_KINDS)}, "column": _TEXT, "value": _TEXT, "least": _NUMBER, "most": _NUMBER}
_WISH = {"type": "object", "properties": _FIELDS, "required": list(_FIELDS), "additionalProperties": False}
_SCHEMA = {
    "type": "object",
    "properties": {"wishes": {"type": "array", "items": _WISH, "maxItems": _MOST}},
    "required": ["wishes"],
    "additionalProperties": False,
}
_PROMPT = """What does the user of a recommender want after the last message, in whatever language it is said?
What the user took back does not count. Answer with JSON: {"wishes": [{"kind", "column", "value", "least", "most"}]}.

kind is one of
- asked: the user asks for a value of a column
- excluded: the user refuses a value
- only: the user accepts nothing but a value
- less: the user wants less of a value, not none
- limit: a number of a column is at least `least` and at most `most`; null where there is no bound
- liked: an item that the user likes, with its title as value
- not_again: an item that the user has seen, dislikes, or does not want from a list that was shown, with its title
- unused: a wish for what no column tells, in the user's words as value
column and value are "" and the numbers null where a kind has none. Write values and titles as they stand here.

Columns with values:
{columns}
Columns with numbers: {numbers}

The conversation, with the titles of the lists that were shown:
{conversation}
"""


class _Client(ChatClient):
    def _request(self, prompt: str) -> dict[str, Any]:
        schema = {"name": "wishes", "strict": True, "schema": _SCHEMA}
        return super()._request(prompt) | {"response_format": {"type": "json_schema", "json_schema": schema}}


class ChatReader(WishReader):
    """Reads wishes with a chat model behind an OpenAI-compatible endpoint. Thread-safe.

    Values and titles that the catalog lacks are told as not used.
    """

    def __init__(self, catalog: Catalog, model: str, base_url: str | None):
        """Raise `InputError` where no endpoint is named and OPENAI_API_KEY has no key for the default one."""
        super().__init__(catalog)
        if base_url is None and not os.environ.get("OPENAI_API_KEY", "").strip():
            raise InputError(f"{MODEL} = {model}: OPENAI_API_KEY has no key; export it, or name an endpoint in {URL}")
        self._options: dict[str, Any] = {
            "model": model, "base_url": base_url, "temperature": 0.0, "max_completion_tokens": _LONGEST_ANSWER,
            "max_concurrency": 1, "max_failed": 1.0, "token_budget": None, "seconds": SECONDS, "max_retries": 0,
        }  # fmt: skip
        self._lock, self._free, self._resumes = threading.Lock(), threading.Semaphore(_AT_ONCE), 0.0
        self._answers: dict[str, Future[list[Wish]]] = {}
        self._most = max(1, min(_KEPT, _CELLS // (4 * len(catalog))))
        columns: dict[str, dict[str, int]] = {}  # how many items have each value
        for value in {id(own): own for values in self._marker.spelt.values() for own in values}.values():
            columns.setdefault(value.column, {})[value.text] = len(value.items)
        told = {name: sorted(own, key=lambda text: (-own[text], text))[:_VALUES] for name, own in columns.items()}
        self._columns = "\n".join(f"- {name}: {', '.join(values)}" for name, values in told.items())
        names = dict.fromkeys(name for item in catalog.items for name in item.metadata)
        self._numbers = ", ".join(["year", *(name for name in names if self._marker.has(_unit(name)))])

    def read(self, messages: Sequence[Mapping[str, Any]]) -> list[Wish]:
        """Return the wishes of a conversation's user (see `WishReader.read`)."""
        said = _transcript(messages)
        with self._lock:
            answer = self._answers.get(said)
            is_new = answer is None and time.monotonic() >= self._resumes and self._free.acquire(blocking=False)
            if is_new:
                answer = self._answers[said] = Future()
                if len(self._answers) > self._most:
                    self._answers.pop(next(iter(self._answers)))
                threading.Thread(target=self._fill, args=(said, answer), name="wishes", daemon=True).start()
        try:
            if answer is not None and (is_new or answer.done()):  # who has waited in vain does not wait again
                return answer.result(SECONDS)
        except Exception as error:  # whatever a model or its endpoint does, there is an answer
            is_late = isinstance(error, TimeoutError)
            why = f"no answer within {SECONDS:g} s" if is_late else f"{type(error).__name__} {error}"
            logger.warning("%s: %s; the built-in reader reads instead, for %.0f s", MODEL, why, _PAUSE)
            with self._lock:
                self._resumes = time.monotonic() + _PAUSE
        return super().read(messages)

    def _fill(self, said: str, answer: "Future[list[Wish]]") -> None:
        try:
            answer.set_result(self._ask(said))
        except Exception as error:
            with self._lock:  # also if nobody waits any more
                self._answers.pop(said, None)
            answer.set_exception(error)
        finally:
            self._free.release()

    def _ask(self, said: str) -> list[Wish]:
        prompt = _PROMPT.replace("{columns}", self._columns).replace("{numbers}", self._numbers)
        prompt = prompt.replace("{conversation}", said)
        store = CallStore(Path(":memory:"))
        try:
            (answer,) = _Client(store, **self._options).ask([prompt], "wishes")
        except InputError:  # it speaks of the teacher
            raise ValueError(f"the endpoint refuses; check {URL}, {MODEL} and OPENAI_API_KEY") from None
        finally:
            store.close()
        if answer is None:
            raise ValueError("the endpoint did not answer")
        return [wish for one in json.loads(answer)["wishes"][:_MOST] for wish in self._wishes(one)]

    def _wishes(self, one: Mapping[str, Any]) -> list[Wish]:
        kind, column, value = one["kind"], one["column"], one["value"]
        if kind == "limit" and column:
            return [self._limit(column, one["least"], one["most"])]
        if not value.strip():
            return []
        if kind in ("liked", "not_again"):
            titles = self._values([value]) or self._titled(value)
            found = [Wish(own.text, "named") if kind == "liked" else self._without(own)[1] for own in titles]
            return found or [Wish(value, "unknown")]
        known = [own for own in self._marker.spelt.get(words_of(value), ()) if own.column == column]
        if kind not in _KINDS or kind == "unused" or not known:
            return [Wish(f"no {value}" if kind == "excluded" else value, "unknown")]
        text, fits = known[0].text, np.zeros(len(self.catalog), bool)
        fits[known[0].items] = True
        if kind == "excluded":
            return [Wish(f"no {text}", "kept", ~fits, frozenset({fold(text)}))]
        if kind == "only":
            return [Wish(f"only {text}", "kept", fits)]
        if kind == "less":
            return [Wish(f"less {text}", "preferred", ~fits)]
        is_soft = is_particular(column, fits)
        return [Wish(text, "kept" if is_soft else "preferred", fits, is_soft=is_soft, is_asked=True)]

    def _titled(self, written: str) -> list[Value]:
        title, year = title_and_year(written)
        indices = self.catalog.readings(title, int(year) if year else None)
        return [Value(self.catalog.items[indices[0]].title, indices)] if indices else []

    def _limit(self, column: str, least: float | None, most: float | None) -> Wish:
        unit = _unit(column)
        numbers, words = self._marker.column(unit), ("since", "until") if unit == "year" else ("at least", "at most")
        name = {"year": "", "min": " minutes"}.get(unit, f" {column}")
        parts = [f"{word} {bound:.10g}" for word, bound in zip(words, (least, most), strict=True) if bound is not None]
        text = f"{' and '.join(parts)}{name}"
        fits = (numbers >= (-np.inf if least is None else least)) & (numbers <= (np.inf if most is None else most))
        return self._limited(text, fits, unit, False) if parts and fits.any() else Wish(text or column, "unknown")


def _unit(column: str) -> str:
    return "min" if fold(column) in MINUTES else stem(fold(column))


def _transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    said = []
    for message in messages:
        names = [name for name in ("items", "liked", "disliked") if message.get(name)]
        lists = [f"({name}: {'; '.join(message[name])})" for name in names]
        said.append({"role": message["role"], "content": "\n".join([message["content"], *lists])})
    return transcript(said)[-LONGEST_READ:]


def make_reader(catalog: Catalog) -> WishReader:
    """Return the reader that the environment names: a chat model, or else the built-in one."""
    if not (model := os.environ.get(MODEL, "").strip()):
        return wish_reader(catalog)
    url = os.environ.get(URL, "").strip() or None
    logger.info("wishes are read by %s", model)
    return ChatReader(catalog, model, url)
