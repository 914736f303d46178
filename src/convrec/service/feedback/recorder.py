"""Records answers and events of a service without ever waiting for the database."""

import logging
import sqlite3
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from convrec.project.errors import InputError, NoSpace, Unavailable
from convrec.project.redaction import redact_all, redactor
from convrec.project.text import is_clean
from convrec.service.feedback.journal import Journal
from convrec.service.feedback.records import Answer, Event, EventName, is_answer_id, new_answer_id
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

_LINGER, _LONGEST_PAUSE = 1.0, 30.0  # seconds between deliveries: normally, and at most while the database is away
_CLOSE = 10.0  # seconds to deliver the rest
_MAX_RECENT = 10_000  # answers kept in memory to check events against
_MAX_ID = 200  # characters


class FeedbackRecorder:
    """Appends answers and events to a journal on disk; a thread delivers them to the database, each exactly once.

    Several services may use one database, and several processes one journal. Thread-safe.
    """

    def __init__(self, journal: Path, url: str, with_conversations: bool = False):
        """Open the journal. The database may be away.

        Raises `InputError` for a bad URL or journal, or a database of another version.
        """
        self._store = FeedbackStore(url)
        self.with_conversations = with_conversations
        with suppress(Unavailable, NoSpace):
            self._store.connect()
        self._journal = Journal(journal.resolve(), self._store)
        self._redact = redactor()
        self._mutex = threading.Lock()
        self._recent: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
        self._last_time = datetime.min.replace(tzinfo=UTC)
        self._is_full = self._is_closed = False
        self.last_error: str | None = None  # None while the database takes the records
        for text in self._journal.of_others():
            logger.warning(text)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="convrec feedback", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """The number of records that the database does not have yet."""
        return 0 if self._is_closed else self._journal.waiting

    def add_answer(self, answer: Answer) -> bool:
        """Record an answer; return False if the disk is full, so that no events of it can be recorded.

        Secrets in its messages are redacted. Messages are left out unless conversations are stored.
        """
        if not self.with_conversations:
            answer = replace(answer, messages=None)
        if answer.messages is not None:
            said = [dict(message) for message in answer.messages]
            answer = replace(answer, messages=redact_all(said, lambda text: self._redact(_clean(text))))
        if answer.user_id is not None:
            answer = replace(answer, user_id=_clean(answer.user_id))
        if not self._append(answer):
            return False
        with self._mutex:
            self._recent[answer.answer_id] = {(one.list, one.item_id) for one in answer.shown}
            if len(self._recent) > _MAX_RECENT:
                self._recent.popitem(last=False)
        return True

    def add_event(self, answer_id: str, list: str, item_id: str, event: EventName, event_id: str | None = None) -> None:
        """Record what a user did with an item; an `event_id` that is recorded already changes nothing.

        The event is checked against the recent answers of this process; of any other answer, an item that was not
        shown changes no outcome. Raises `InputError` for an item that was not shown, or what cannot be an answer's id,
        and `NoSpace` if the disk is full.
        """
        given = {"answer_id": answer_id, "list": list, "item_id": item_id, "event_id": event_id or ""}
        for name, text in given.items():
            if len(text) > _MAX_ID or not is_clean(text):
                raise InputError(f"{name}: {text!r:.60} is not valid; give at most {_MAX_ID} printable characters")
        if not is_answer_id(answer_id):
            raise InputError(f"answer_id: {answer_id!r:.60} is unknown; ask again")
        with self._mutex:
            items = self._recent.get(answer_id)
            # A later call has a later time, so that the last event of an item is known.
            now = self._last_time = max(datetime.now(UTC), self._last_time + timedelta(microseconds=1))
        if items is not None and (list, item_id) not in items:
            where = f" in list {list!r:.60}" if list else ""
            raise InputError(f"item_id {item_id!r:.60} was not shown{where} by this answer; give one of its items")
        if not self._append(Event(event_id or new_answer_id(now), answer_id, list, item_id, event, now)):
            raise NoSpace("the feedback was not recorded, because the disk is full; send it again later")

    def _append(self, record: Answer | Event) -> bool:
        with self._mutex:
            if self._is_closed:
                return False
            try:
                self._journal.append(record)
                self._is_full = False
            except sqlite3.Error as error:
                if not self._is_full:
                    logger.error("records cannot be written to %s (%s)", self._journal.path, error)
                self._is_full = True
            return not self._is_full

    def close(self) -> None:
        """Deliver the rest, for a few seconds at most; what is left is delivered by the next process."""
        self._closing.set()
        self._thread.join(_CLOSE)
        with self._mutex:
            self._is_closed = True
        if not self._thread.is_alive():
            self._store.close()

    def _run(self) -> None:
        pause = _LINGER
        while not self._closing.wait(pause):
            pause = _LINGER if self._try() else min(2 * pause, _LONGEST_PAUSE)
        with self._mutex:
            self._is_closed = True
        self._try()
        self._journal.close()

    def _try(self) -> bool:
        """Deliver everything; return whether that worked."""
        try:
            self._journal.deliver()
        except Exception as error:  # whatever a driver raises, the records stay in the journal
            if self.last_error is None:
                logger.warning("feedback is buffered in %s: %s", self._journal.path, error)
            self.last_error = str(error)
            return False
        if self.last_error is not None:
            logger.info("the feedback database is back: the buffered records are delivered")
        self.last_error = None
        return True


def _clean(text: Any) -> str:
    """Return a text that every file and database takes."""
    return str(text).encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
