"""Writes recorded feedback to a file: one row for each shown item, with its answer's conversation."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import polars as pl

from convrec.project.atomic import replaced
from convrec.project.errors import InputError
from convrec.service.feedback.store import FeedbackStore

FILE = "feedback.parquet"  # what the source `feedback` reads
_WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    ".parquet": lambda rows, path: rows.write_parquet(path),
    ".csv": lambda rows, path: rows.write_csv(path, datetime_format="%Y-%m-%dT%H:%M:%S%.6fZ"),
    ".jsonl": lambda rows, path: rows.write_ndjson(path),
}


def export(store: FeedbackStore, path: Path, since: datetime | None = None, until: datetime | None = None) -> int:
    """Write the outcomes of `FeedbackStore.outcomes`, with `messages` (JSON), and return their number.

    The same feedback gives the same bytes, so that DVC sees a change only where there is one. Raises `InputError` for
    another ending than .parquet, .csv or .jsonl, and as the store does; the file then stays as it was.
    """
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise InputError(f"{path}: the ending {path.suffix!r} is unknown; give one of {', '.join(_WRITERS)}")
    messages = store.answers(since, until).select("answer_id", "messages")
    rows = store.outcomes(since, until).join(messages, on="answer_id", how="left", maintain_order="left")
    with replaced(path) as new:
        write(rows, new)
    return len(rows)
