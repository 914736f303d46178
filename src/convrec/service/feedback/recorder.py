"""Records answers and events of a service without ever waiting for the database."""

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from convrec.project.errors import InputError, NoSpace, Unavailable, outside_cause
from convrec.project.redaction import redact_all, redactor
from convrec.project.text import is_clean
from convrec.service.feedback.delivery import deliver, deliver_left, keep
from convrec.service.feedback.journal import FeedbackJournal
from convrec.service.feedback.records import EVENTS, Answer, Event, EventName, new_answer_id, time_of
from convrec.service.feedback.store import FeedbackStore, not_shown

logger = logging.getLogger(__name__)

_LINGER, _LONGEST_PAUSE = 1.0, 30.0  # seconds between deliveries: normally, and at most while the database is away
_WAIT = timedelta(minutes=2)  # that an event waits for its answer, which may be in the journal of another service
_SKEW = timedelta(minutes=1)  # between the clocks of two services
_LOOKUP = 0.5  # seconds that an event waits for the database
_CLOSE = 10.0  # seconds to deliver the rest
_SEGMENT_BYTES, _SEGMENT_SECONDS = 4 * 1024**2, 60.0  # from which a delivered journal is replaced by a new one
_MAX_RECENT = 10_000  # answers kept in memory to check events against
_MAX_ID = 200  # characters


@dataclass(frozen=True)
class Status:
    """What a recorder still has to deliver, and why it cannot."""

    backlog: int  # records that the database does not have yet
    delivered: int
    last_error: str | None  # None while the database takes the records


class FeedbackRecorder:
    """Appends answers and events to a journal on disk; a thread delivers them to the database, each exactly once.

    Several services may use one database, and several processes one folder of journals: each has its own journal, and
    those of killed processes are delivered by the others. Thread-safe.
    """

    def __init__(self, journal_folder: Path, url: str, with_conversations: bool = False):
        """Open a new journal. The database may be away. Raises `InputError` for a bad URL or folder."""
        self._store = FeedbackStore(url)
        self.with_conversations = with_conversations
        self._folder = journal_folder.resolve()
        try:
            self._journal = FeedbackJournal.create(self._folder)
        except OSError as error:
            raise outside_cause(error) or error from None
        self._opened = time.monotonic()
        self._replaced: list[FeedbackJournal] = []  # still to be delivered
        self._redact = redactor()
        self._mutex = threading.Lock()
        self._recent: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
        self._last_time = datetime.min.replace(tzinfo=UTC)
        self._added = self._delivered = 0
        self._lookups = threading.Semaphore(4)
        self._reachable_since: datetime | None = None
        self._error: str | None = None
        self._closing = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="convrec feedback", daemon=True)
        self._thread.start()

    def add_answer(self, answer: Answer) -> bool:
        """Record an answer; return False if the disk is full, so that no events of it can be recorded.

        Secrets in its messages are redacted. Messages and filters are left out unless conversations are stored.
        """
        if not self.with_conversations:
            answer = replace(answer, messages=None, denied=(), allowed=None)
        messages = answer.messages
        if messages is not None:
            redact = self._redact
            messages = redact_all([dict(message) for message in messages], lambda text: redact(_clean(text)))
        user_id = answer.user_id if answer.user_id is None else _clean(answer.user_id)
        if not self._append(replace(answer, messages=messages, user_id=user_id)):
            return False
        self._remember(answer.answer_id, {(one.list, one.item_id) for one in answer.shown})
        return True

    def add_event(self, answer_id: str, list: str, item_id: str, event: str, event_id: str | None = None) -> None:
        """Record what a user did with an item; an `event_id` that is recorded already changes nothing.

        The answers of this service are checked at once, others in the database. If that does not answer soon, or the
        answer may still be on its way there, the event is checked at its delivery, and set aside in `refused.jsonl` if
        it is wrong. Raises `InputError` for an unknown answer or event or an item that was not shown, and `NoSpace` if
        the disk is full.
        """
        if event not in EVENTS:
            raise InputError(f"event: {event!r:.60} is not known; give one of {', '.join(EVENTS)}")
        given = {"answer_id": answer_id, "list": list, "item_id": item_id, "event_id": event_id or ""}
        for name, text in given.items():
            if len(text) > _MAX_ID or not is_clean(text):
                raise InputError(f"{name}: {text!r:.60} is not valid; give at most {_MAX_ID} printable characters")
        items = self._items(answer_id)
        if items is not None and (list, item_id) not in items:
            raise InputError(not_shown(list, item_id))
        now = self._now()
        name = cast(EventName, event)
        if not self._append(Event(event_id or new_answer_id(now), answer_id, list, item_id, name, now)):
            raise NoSpace("the feedback was not recorded, because the disk is full; send it again later")

    def _now(self) -> datetime:
        """Return the time; a later call returns a later one, so that the last event of an item is known."""
        with self._mutex:
            self._last_time = max(datetime.now(UTC), self._last_time + timedelta(microseconds=1))
            return self._last_time

    def _append(self, record: Answer | Event) -> bool:
        with self._mutex:
            if self._is_closed or not self._journal.append(record):
                return False
            self._added += 1
            return True

    def _remember(self, answer_id: str, items: set[tuple[str, str]]) -> None:
        with self._mutex:
            self._recent[answer_id] = items
            if len(self._recent) > _MAX_RECENT:
                self._recent.popitem(last=False)

    def _items(self, answer_id: str) -> set[tuple[str, str]] | None:
        """Return the lists and items of an answer; None if only its delivery can tell.

        Raises `InputError` if the answer is unknown.
        """
        with self._mutex:
            items = self._recent.get(answer_id)
        if items is not None:
            return items
        unknown = InputError(f"answer_id: {answer_id!r:.60} is unknown; ask again")
        made = time_of(answer_id)
        if made is None or made > datetime.now(UTC) + _SKEW:
            raise unknown
        is_found, items = self._look_up(answer_id)
        if items is not None:
            self._remember(answer_id, items)
        elif is_found and made < self._waits_since():
            raise unknown
        return items

    def _look_up(self, answer_id: str) -> tuple[bool, set[tuple[str, str]] | None]:
        """Return whether the database answered in time, and the items of the answer, None if it is unknown."""
        if self._error is not None or not self._lookups.acquire(blocking=False):
            return False, None
        found: list[set[tuple[str, str]] | None] = []

        def ask() -> None:
            try:
                found.append(self._store.items(answer_id))
            except (Unavailable, InputError) as error:
                logger.debug("answer %s was not looked up (%s)", answer_id, error)
            finally:
                self._lookups.release()

        thread = threading.Thread(target=ask, name="convrec feedback lookup", daemon=True)
        thread.start()
        thread.join(_LOOKUP)
        return (True, found[0]) if found else (False, None)

    def _waits_since(self) -> datetime:
        """Return the time after which answers may still be in a journal: since a database that was away is back."""
        since = self._reachable_since
        latest = datetime.now(UTC) - _WAIT
        return latest if since is not None and since < latest else datetime.min.replace(tzinfo=UTC)

    def status(self) -> Status:
        """Return the number of records still to deliver, of those delivered, and the last error."""
        with self._mutex:
            return Status(self._added - self._delivered, self._delivered, self._error)

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
        is_done = self._try()
        for journal in [*self._replaced, self._journal]:
            if is_done and not any(True for _ in journal.unsent()):
                journal.remove()
            else:
                journal.release()

    def _try(self) -> bool:
        """Deliver everything; return whether that worked."""
        try:
            self._deliver_own()
            own = None if self._is_closed else self._journal
            deliver_left(self._folder, self._store, self._waits_since(), own)
        except Exception as error:  # whatever a driver raises, the records stay in the journal
            if self._error is None:
                logger.warning("feedback is buffered in %s: %s", self._folder, error)
            self._error, self._reachable_since = str(error), None
            return False
        if self._error is not None:
            logger.info("the feedback database is back: the buffered records are delivered")
        self._error = None
        self._reachable_since = self._reachable_since or datetime.now(UTC)
        return True

    def _deliver_own(self) -> None:
        for journal in list(self._replaced):
            self._deliver(journal)
            journal.remove()
            self._replaced.remove(journal)
        self._deliver(self._journal)
        size, age = self._journal.size(), time.monotonic() - self._opened
        if self._closing.is_set() or not (size > _SEGMENT_BYTES or (size and age > _SEGMENT_SECONDS)):
            return
        fresh = FeedbackJournal.create(self._folder)
        with self._mutex:
            self._replaced.append(self._journal)
            self._journal, self._opened = fresh, time.monotonic()

    def _deliver(self, journal: FeedbackJournal) -> None:
        for number, waiting in deliver(journal, self._store, self._waits_since()):
            keep(waiting, self._journal)
            with self._mutex:
                self._delivered += number - len(waiting)


def _clean(text: Any) -> str:
    """Return a text that every file and database takes."""
    return str(text).encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
