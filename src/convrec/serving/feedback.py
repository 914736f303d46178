"""The record of answers and of what users do with them: a file of JSON lines, only appended to."""

import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from convrec.errors import InputError
from convrec.files.atomic import check_target

Event = Literal["accepted", "rejected", "hidden", "withdrawn"]
EVENTS: tuple[Event, ...] = get_args(Event)
_MAX_ANSWERS = 10_000  # that feedback is accepted for; older ones are forgotten


class _Answer(NamedTuple):
    shown: Mapping[str, Sequence[str]]  # the items' ids by model, best first
    last: dict[tuple[str, str], str]  # the last event by model and item


class FeedbackLog:
    """Appends each answer and each event to a file; thread-safe, and several processes may share the file.

    An answer's line has `answer_id`, `time`, and `models`: name and `item_ids` as shown. An event's line has
    `answer_id`, `time`, `model`, `item_id`, `rank` and `event`. Conversations are stored only if `with_conversations`.
    """

    def __init__(self, path: Path, with_conversations: bool = False):
        """Create the file's folder. Raises `InputError` if no file can be written there."""
        check_target(path, "--feedback")
        self.path, self.with_conversations = path, with_conversations
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._lock = threading.Lock()

    def add_answer(self, shown: Mapping[str, Sequence[str]], messages: Sequence[Mapping[str, str]]) -> str:
        """Record the items that each model's list shows, best first; return the answer's id.

        Raises `OSError` if the file cannot be written.
        """
        answer_id = uuid.uuid4().hex
        models = [{"name": name, "item_ids": list(ids)} for name, ids in shown.items()]
        record: dict[str, Any] = {"answer_id": answer_id, "models": models}
        if self.with_conversations:
            record["messages"] = list(messages)
        with self._lock:
            self._append(record)
            self._answers[answer_id] = _Answer(shown, {})
            if len(self._answers) > _MAX_ANSWERS:
                self._answers.popitem(last=False)
        return answer_id

    def add_event(self, answer_id: str, model: str, item_id: str, event: Event) -> None:
        """Record what the user did with an item; the last event of an item counts, a repeated one is not recorded.

        Raises `InputError` if the answer is unknown or did not show the item, and `OSError` if the file cannot be
        written.
        """
        with self._lock:
            answer = self._answers.get(answer_id)
            if answer is None:
                raise InputError(f"answer_id: {answer_id!r:.60} is unknown or too old; ask again")
            if item_id not in answer.shown.get(model, ()):
                raise InputError(f"item_id: {item_id!r:.60} was not shown by {model!r:.60} in this answer")
            if answer.last.get((model, item_id)) == event:
                return
            rank = list(answer.shown[model]).index(item_id) + 1
            self._append({"answer_id": answer_id, "model": model, "item_id": item_id, "rank": rank, "event": event})
            answer.last[model, item_id] = event

    def _append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **record}, ensure_ascii=False)
        with self.path.open("ab") as file:
            file.write(f"{line}\n".encode())
