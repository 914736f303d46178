"""Reads the feedback of a window and what it is compared with, and makes the checks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from convrec.data.catalog import Catalog
from convrec.data.mentions import Mentions
from convrec.feedback.store import FeedbackStore
from convrec.monitoring.checks import ALARM, Check, Compared, run_checks
from convrec.monitoring.settings import Monitoring
from convrec.monitoring.window import read_conversations, read_feedback, read_training
from convrec.similarity.embedding import Embedder


@dataclass(frozen=True)
class Watched:
    """The checks of the window from `since` to `until`, and all that they compared."""

    since: datetime
    until: datetime
    checks: list[Check]
    compared: Compared

    @property
    def alarms(self) -> list[Check]:
        """The checks that raise an alarm."""
        return [check for check in self.checks if check.status == ALARM]

    def to_json(self) -> dict[str, Any]:
        """Return window and checks as JSON values."""
        times = {"since": self.since.isoformat(), "until": self.until.isoformat()}
        return {**times, "alarm": bool(self.alarms), "checks": [check.to_json() for check in self.checks]}


def watch(
    store: FeedbackStore,
    catalog: Catalog,
    rows: Sequence[dict[str, Any]],
    settings: Monitoring,
    embedder: Callable[[list[str]], Embedder],
    until: datetime,
    seed: int,
) -> Watched:
    """Return the checks of the window that ends at `until`.

    `rows` are the canonical rows of training; `embedder` makes an embedder fitted on texts. `seed` draws the
    conversations to compare, if there are more than `max_conversations`.
    """
    since = until - timedelta(days=settings.window_days)
    finder, limit = Mentions(catalog), settings.max_conversations
    window = read_feedback(store, catalog, since, until)
    compared = Compared(
        window,
        read_feedback(store, catalog, since - timedelta(days=settings.before_days), since),
        read_conversations(window, catalog, finder, limit, seed),
        read_training(rows, catalog, finder, settings.training_months, limit, seed),
        [str(item) for item in catalog.items],
    )
    return Watched(since, until, run_checks(settings.checks, compared, embedder, seed), compared)
