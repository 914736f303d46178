"""Delivers journals to the feedback database: that of this process, and those that killed processes left."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from convrec.project.errors import NoSpace
from convrec.service.feedback.journal import DamagedLine, FeedbackJournal, Record, journals
from convrec.service.feedback.records import Answer, Event
from convrec.service.feedback.store import FeedbackStore

logger = logging.getLogger(__name__)

_BATCH = 500  # records of one transaction
_BAD_RECORD = (SQLAlchemyError, ValueError, TypeError, OverflowError)  # errors of one record, such as a NUL in a text


def deliver(journal: FeedbackJournal, store: FeedbackStore, waits_since: datetime) -> Iterator[tuple[int, list[Event]]]:
    """Write the undelivered records in batches; yield their numbers, and the events that wait for their answers.

    An event from after `waits_since` may wait for its answer: the caller appends it to a journal again. After each
    `next`, the batch counts as delivered. Invalid records are set aside in the journal. Raises `Unavailable` and
    `InputError` as the store does; a batch that was written twice because of that is stored once.
    """
    unsent = journal.unsent()
    while batch := list(islice(unsent, _BATCH)):
        waiting = _write(journal, store, [record for record, _ in batch], waits_since)
        yield sum(not isinstance(record, DamagedLine) for record, _ in batch), waiting
        with suppress(OSError):  # a full disk: the batch may be delivered again, which changes nothing
            journal.mark_sent(batch[-1][1])


def _write(journal: FeedbackJournal, store: FeedbackStore, records: list[Record], waits_since: datetime) -> list[Event]:
    """Write records; if the database rejects them, bisect to find the ones to set aside."""
    answers = [record for record in records if isinstance(record, Answer)]
    events = [record for record in records if isinstance(record, Event)]
    refused: list[tuple[Record, str]] = [(one, one.reason) for one in records if isinstance(one, DamagedLine)]
    waiting: list[Event] = []
    try:
        for one in store.write(answers, events):
            if one.is_answer_known or one.event.time < waits_since:
                refused.append((one.event, one.reason))
            else:
                waiting.append(one.event)
    except _BAD_RECORD as error:
        if len(records) > 1:
            middle = len(records) // 2
            halves = records[:middle], records[middle:]
            return [event for half in halves for event in _write(journal, store, half, waits_since)]
        refused = [(records[0], f"the database rejects it ({type(getattr(error, 'orig', error)).__name__})")]
    for record, reason in refused:
        with suppress(OSError):
            journal.refuse(record, reason)
    if refused:
        logger.warning("%d feedback records are set aside in %s: %s", len(refused), journal.path.parent, refused[0][1])
    return waiting


def deliver_left(folder: Path, store: FeedbackStore, waits_since: datetime, own: FeedbackJournal | None = None) -> None:
    """Deliver the journals of processes that ended, and remove them; events that wait go to the journal `own`.

    Without `own`, a journal with such events stays. Raises `NoSpace` if they cannot be written, and as `deliver`.
    """
    for path in journals(folder):
        journal = FeedbackJournal.adopt(path)
        if journal is None:
            continue
        try:
            for _, waiting in deliver(journal, store, waits_since):
                if waiting and own is None:
                    break
                keep(waiting, own)
            else:
                journal.remove()
        finally:
            journal.release()


def keep(events: list[Event], journal: FeedbackJournal | None) -> None:
    """Append events that wait for their answers to a journal. Raises `NoSpace` if the disk is full."""
    if journal is not None and not all([journal.append(event) for event in events]):
        raise NoSpace(f"{journal.path}: the disk is full; free some space")
