# ruff: noqa: F401
"""What users do with the service's answers: recorded in a database, exported, deleted."""

from convrec.service.feedback.database import JOURNAL, URL_VARIABLE, feedback_url
from convrec.service.feedback.recorder import FeedbackRecorder
from convrec.service.feedback.records import Answer, Event, Shown, new_answer_id
from convrec.service.feedback.store import FeedbackStore, open_store
