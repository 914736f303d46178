"""Recorded feedback: conversations of the service whose accepted items are ground truth (docs/feedback.md)."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from convrec.data.catalog import Catalog
from convrec.data.parquet import open_parquet, parquet_columns
from convrec.data.quarantine import Quarantine
from convrec.data.rows import usable_rows
from convrec.data.schemas import spooled
from convrec.data.sources.source import Source
from convrec.project.errors import InputError

logger = logging.getLogger(__name__)

FILE = Path("data/raw/feedback/feedback.parquet")  # that `convrec feedback export` writes
_COLUMNS = ("answer_id", "time", "user_id", "messages", "item_id", "accepted", "rejected", "hidden", "watched")


def read_feedback(path: Path, quarantine: Quarantine, *, catalog: Catalog) -> Source:
    """Return a row for each answer with an accepted item and a stored conversation.

    The ground truth is what was accepted, or watched and neither rejected nor hidden; what was rejected or hidden is
    disliked. Items are those of the catalog: ids that it lacks go to the quarantine. Answers without any item of it are
    left out: those of another project's model, or of retired items alone. Raises `InputError` on a missing or
    unreadable file.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; write it with `convrec feedback export`")
    if missing := [name for name in _COLUMNS if name not in parquet_columns(path)]:
        raise InputError(f"{path}: column {missing[0]!r} is missing; write it with `convrec feedback export`")
    with open_parquet(path) as file:
        shown = pl.DataFrame(pl.from_arrow(file.read(list(_COLUMNS))))
    is_own = pl.col("item_id").is_in([own.id for own in catalog.items]).any().over("answer_id")
    shown, num_foreign = shown.filter(is_own), shown.filter(~is_own)["answer_id"].n_unique()
    item = ["answer_id", "item_id"]  # an answer can show it in two lists
    liked, seen = pl.col("accepted").any().over(item), pl.col("watched").any().over(item)
    disliked = (pl.col("rejected") | pl.col("hidden")).any().over(item)
    shown = shown.with_columns(accepted=liked | (seen & ~disliked), disliked=disliked & ~liked)
    rows = spooled(usable_rows(_raw_rows(shown), catalog, quarantine))
    answers, accepted = shown["answer_id"].n_unique(), shown.filter("accepted")["answer_id"].n_unique()
    hint = "; store conversations to learn from them (docs/feedback.md)" if accepted and not len(rows) else ""
    found = f"{accepted:,} of {answers:,} answers with an accepted item, {len(rows):,} rows"
    if num_foreign:
        logger.warning("feedback: answers without any item of the catalog, which do not count: %d", num_foreign)
    logger.info("feedback: %s%s", found, hint)
    return Source(catalog, rows)


def _raw_rows(shown: pl.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answers with a stored conversation and an accepted item, in the form of the source `files`."""
    kept = shown.filter(pl.col("messages").is_not_null() & pl.col("accepted").any().over("answer_id"))
    for answer in kept.partition_by("answer_id", maintain_order=True):
        first = answer.row(0, named=True)
        yield (
            first["answer_id"],
            {
                "conversation_id": first["answer_id"],
                "user_id": first["user_id"],
                "date": first["time"],
                "messages": json.loads(first["messages"]),
                "groundtruth": _items(answer.filter("accepted")),
                "disliked_titles": _items(answer.filter("disliked")),
            },
        )


def _items(rows: pl.DataFrame) -> list[dict[str, str]]:
    return [{"id": item} for item in rows["item_id"].unique(maintain_order=True)]
