"""Records answers and events of a service without ever waiting for the database."""

import logging
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from convrec.project.errors import InputError, NoSpace, Unavailable, outside_cause
from convrec.project.redaction import redact_all, redactor
from convrec.project.text import is_clean
from convrec.service.feedback.journal import Journal, deliver, deliver_left
from convrec.service.feedback.records import Answer, Event, EventName, new_answer_id, usable_answer_id
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

_LINGER, _LONGEST_PAUSE = 1.0, 30.0  # seconds between deliveries: normally, and at most while the database is away
_CLOSE = 10.0  # seconds to deliver the rest
_MAX_RECENT = 10_000  # answers kept in memory to check events against
_MAX_ID = 200  # characters
_MAX_JOURNAL = 4 * 1024**2  # bytes; one that is never empty between deliveries is then replaced


class FeedbackRecorder:
    """Appends answers and events to a journal on disk; a thread delivers them to the database, each exactly once.

    Several services may use one database, and several processes one folder of journals: each has its own journal, and
    those of killed processes are delivered by the others. Thread-safe.
    """

    def __init__(self, journal_folder: Path, url: str, with_conversations: bool = False):
        """Open a new journal. The database may be away.

        Raises `InputError` for a bad URL or folder, or a database of another version.
        """
        self._store = FeedbackStore(url)
        self.with_conversations = with_conversations
        self._folder = journal_folder.resolve()
        try:
            with suppress(Unavailable, NoSpace):
                self._store.connect()
            self._journal = Journal.create(self._folder, self._store.identity(self._folder))
        except OSError as error:
            raise outside_cause(error) or error from None
        self._delivered = 0  # bytes of the journal that the database has
        self.backlog = 0  # records of this process that the database does not have yet
        self._redact = redactor()
        self._mutex = threading.Lock()
        self._recent: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
        self._last_time = datetime.min.replace(tzinfo=UTC)
        self._is_full = self._is_closed = False
        self.last_error: str | None = None  # None while the database takes the records
        self._stays: list[str] = []  # why journals of ended processes are not delivered, as last logged
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="convrec feedback", daemon=True)
        self._thread.start()

    def add_answer(self, answer: Answer) -> bool:
        """Record an answer; return False if the disk is full, so that no events of it can be recorded.

        Secrets in its messages are redacted. Messages are left out unless conversations are stored.
        """
        if not self.with_conversations:
            answer = replace(answer, messages=None)
        if answer.messages is not None:
            answer = replace(answer, messages=redact_all(answer.messages, lambda text: self._redact(_clean(text))))
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
        if not (known := usable_answer_id(answer_id)):
            raise InputError(f"answer_id: {answer_id!r:.60} is unknown; ask again")
        with self._mutex:
            items = self._recent.get(known)
            # A later call has a later time, so that the last event of an item is known.
            now = self._last_time = max(datetime.now(UTC), self._last_time + timedelta(microseconds=1))
        if items is not None and (list, item_id) not in items:
            where = f" in list {list!r:.60}" if list else ""
            raise InputError(f"item_id {item_id!r:.60} was not shown{where} by this answer; give one of its items")
        if not self._append(Event(event_id or new_answer_id(now), known, list, item_id, event, now)):
            raise NoSpace("the feedback was not recorded, because the disk is full; send it again later")

    def _append(self, record: Answer | Event) -> bool:
        with self._mutex:
            if self._is_closed:
                return False
            try:
                self._journal.append(record)
                self.backlog, self._is_full = self.backlog + 1, False
            except OSError as error:
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
            self._deliver_own()
            stays = deliver_left(self._folder, self._store)
        except Exception as error:  # whatever a driver raises, the records stay in the journal
            if self.last_error is None:
                logger.warning("feedback is buffered in %s: %s", self._folder, error)
            self.last_error = str(error)
            return False
        if self.last_error is not None:
            logger.info("the feedback database is back: the buffered records are delivered")
        self.last_error = None
        for text in stays:
            if text not in self._stays:
                logger.warning("feedback is not delivered: %s", text)
        self._stays = stays
        return True

    def _deliver_own(self) -> None:
        """Deliver what the journal has now, and empty it if nothing was added meanwhile; a large one is replaced."""
        with self._mutex:
            journal, size, number = self._journal, self._journal.size, self.backlog
        deliver(journal, self._store, self._delivered, size)
        with self._mutex:
            self.backlog -= number
            self._delivered = size
            if journal.size == size:
                journal.clear()
                self._delivered = 0
            if journal.size <= _MAX_JOURNAL:
                return
            new = Journal.create(self._folder, self._store.identity(self._folder))
            self._journal, self._delivered, number = new, 0, self.backlog
        try:
            deliver(journal, self._store, size)
            journal.clear()
        finally:  # what could not be delivered, `deliver_left` delivers
            journal.close()
            with self._mutex:
                self.backlog -= number


def _clean(text: Any) -> str:
    """Return a text that every file and database takes."""
    return str(text).encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
