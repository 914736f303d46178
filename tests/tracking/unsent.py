"""What a journal still has to send."""

from typing import Any

from convrec.tracking.journal import LANES, Journal


def waiting(journal: Journal) -> list[dict[str, Any]]:
    """Return the records of both lanes that are not sent yet."""
    return [record for lane in LANES for record, _ in journal.unsent(lane)]
