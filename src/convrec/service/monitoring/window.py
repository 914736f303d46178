"""What the service did in a time, and what the model was trained on, in the form that the checks compare."""

import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, month_of, person_of
from convrec.data.mentions import Mentions
from convrec.evaluation.beyond_accuracy import mentions
from convrec.service.feedback import FeedbackStore
from convrec.service.monitoring.settings import Monitoring

CHALLENGER = "challenger"  # the arm and the list that are not watched: its experiment watches it
OUTSIDE = -1  # the index of an item that is not in the catalog


class Feedback(NamedTuple):
    """The answers of a time, without those of a challenger.

    `answers` has one row an answer: `answer_id`, `time`, `person`, `latency_seconds`, `messages` (JSON, or null) and
    `accepted`, the number of accepted items. `shown` has one row a shown item: `answer_id`, `time`, `person`, `list`,
    `rank`, `item_id`, `item` (its catalog index, or `OUTSIDE`) and `accepted`.
    """

    answers: pl.DataFrame
    shown: pl.DataFrame


def read_feedback(store: FeedbackStore, catalog: Catalog, since: datetime, until: datetime) -> Feedback:
    """Return the feedback from `since` to before `until`. An answer without a user is a person of its own."""
    watched = pl.col("arm").is_null() | (pl.col("arm") != CHALLENGER)
    person = pl.coalesce("user_id", "answer_id").alias("person")
    answers = store.answers(since, until).filter(watched).with_columns(person)
    shown = store.outcomes(since, until).filter(watched, pl.col("list") != CHALLENGER).with_columns(person)
    indices = [catalog.index_of_id(item) for item in shown["item_id"]]
    items = pl.Series("item", [OUTSIDE if index is None else index for index in indices], dtype=pl.Int64)
    shown = shown.with_columns(items)
    counts = shown.group_by("answer_id").agg(pl.col("accepted").sum().cast(pl.Int64))
    answers = answers.join(counts, on="answer_id", how="left", maintain_order="left")
    answers = answers.with_columns(pl.col("accepted").fill_null(0))
    return Feedback(
        answers.select("answer_id", "time", "person", "latency_seconds", "messages", "accepted"),
        shown.select("answer_id", "time", "person", "list", "rank", "item_id", "item", "accepted"),
    )


class Conversations(NamedTuple):
    """Texts of conversations, their persons, and the catalog items that each names."""

    texts: list[str]
    persons: list[str]
    named: list[list[int]]

    def items(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the index and the person of each named item, once a conversation. Shape: (n,) each."""
        pairs = [(item, one) for items, one in zip(self.named, self.persons, strict=True) for item in items]
        return np.array([item for item, _ in pairs], dtype=np.int64), np.array([one for _, one in pairs], dtype=str)


def _words(messages: Iterable[dict[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages if message["role"] == "user")


def _read(texts: list[str], persons: list[str], catalog: Catalog, finder: Mentions) -> Conversations:
    named = [sorted(catalog.indices_of_titles(finder.titles([text]))) for text in texts]
    return Conversations(texts, persons, named)


def _drawn(number: int, limit: int, seed: int) -> list[int]:
    """Return the places of at most `limit` of `number` things, in order."""
    return sorted(np.random.default_rng(seed).permutation(number)[:limit].tolist())


class Training(NamedTuple):
    """What the model was trained on.

    `conversations` are drawn; `liked` counts each item in the ground truth, `known` says whether training has the item
    there or among the titles that its conversations name. Shape: (C,).
    """

    conversations: Conversations
    liked: np.ndarray
    known: np.ndarray


def _recent(rows: Sequence[dict[str, Any]], months: int) -> list[dict[str, Any]]:
    """Return the rows of the last `months` months that have rows; all rows if none has a date."""
    last = sorted({month_of(row) for row in rows} - {""})[-months:]
    return [row for row in rows if not last or month_of(row) in last]


def read_training(
    rows: Sequence[dict[str, Any]], catalog: Catalog, finder: Mentions, months: int, limit: int, seed: int
) -> Training:
    """Return the reference of the training rows of the last `months`, with at most `limit` conversations.

    `known` is of all rows.
    """
    known = mentions(rows, catalog) > 0
    for row in distinct_prompts(rows):
        known[list(catalog.indices_of_titles(row["seen_titles"]))] = True
    recent = _recent(rows, months)
    prompts, liked = distinct_prompts(recent), mentions(recent, catalog)
    prompts = [prompts[place] for place in _drawn(len(prompts), limit, seed)]
    texts = [_words(row["messages"]) for row in prompts]
    return Training(_read(texts, [person_of(row) for row in prompts], catalog, finder), liked, known)


def read_conversations(feedback: Feedback, catalog: Catalog, finder: Mentions, limit: int, seed: int) -> Conversations:
    """Return at most `limit` of the distinct stored conversations; none where the service does not store them.

    Those of training are distinct, too: a classifier would otherwise recognise what it has seen in another fold.
    """
    stored = feedback.answers.filter(pl.col("messages").is_not_null())
    stored = stored.unique("messages", keep="first", maintain_order=True)
    stored = stored[_drawn(len(stored), limit, seed)]
    texts = [_words(json.loads(messages)) for messages in stored["messages"]]
    return _read(texts, stored["person"].to_list(), catalog, finder)


class Watched(NamedTuple):
    """All that the checks compare: the feedback from `since` to `until` and before, conversations, and training."""

    since: datetime
    until: datetime
    window: Feedback
    before: Feedback
    conversations: Conversations  # of the window
    training: Training
    titles: list[str]  # of the catalog


def read_watched(
    store: FeedbackStore,
    catalog: Catalog,
    rows: Sequence[dict[str, Any]],
    settings: Monitoring,
    until: datetime,
    seed: int,
) -> Watched:
    """Return what is compared of the window that ends at `until`.

    `rows` are the canonical rows of training. `seed` draws the conversations, if there are more than
    `max_conversations`.
    """
    since = until - timedelta(days=settings.window_days)
    finder, limit = Mentions(catalog), settings.max_conversations
    window = read_feedback(store, catalog, since, until)
    return Watched(
        since,
        until,
        window,
        read_feedback(store, catalog, since - timedelta(days=settings.before_days), since),
        read_conversations(window, catalog, finder, limit, seed),
        read_training(rows, catalog, finder, settings.training_months, limit, seed),
        [str(item) for item in catalog.items],
    )
