"""What users do with the service's answers: recorded in a database, exported, deleted."""

from convrec.feedback.records import EVENTS, Answer, Event, Shown, new_answer_id
from convrec.feedback.store import FeedbackStore

__all__ = ["EVENTS", "Answer", "Event", "FeedbackStore", "Shown", "new_answer_id"]
