"""What the service did in a time, and what the model was trained on, in the form that the checks compare."""

import json
from collections.abc import Sequence
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
        counts = [len(items) for items in self.named]
        return np.concatenate([[], *self.named]).astype(np.int64), np.repeat(np.array(self.persons, dtype=str), counts)


class Training(NamedTuple):
    """What the model was trained on: at most so many `conversations` of the last months, and counts of items.

    `liked` counts each item in the ground truth of these months, `known` says whether training has the item there or
    among the titles that its conversations name. Shape: (C,).
    """

    conversations: Conversations
    liked: np.ndarray
    known: np.ndarray


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
    `max_conversations`. The reference of training are the rows of its last months with rows; all if none has a date.
    """
    since, finder = until - timedelta(days=settings.window_days), Mentions(catalog)

    def draw(conversations: Sequence[tuple[list[dict[str, str]], str]]) -> Conversations:
        places = np.random.default_rng(seed).permutation(len(conversations))[: settings.max_conversations]
        drawn = [conversations[place] for place in sorted(places)]
        said = ([message["content"] for message in messages if message["role"] == "user"] for messages, _ in drawn)
        texts = ["\n".join(words) for words in said]
        named = [sorted(catalog.indices_of_titles(finder.titles([text]))) for text in texts]
        return Conversations(texts, [person for _, person in drawn], named)

    window = read_feedback(store, catalog, since, until)
    # Those of training are distinct, too: a classifier would otherwise recognise what it has seen in another fold.
    stored = window.answers.drop_nulls("messages").unique("messages", keep="first", maintain_order=True)
    last = sorted({month_of(row) for row in rows} - {""})[-settings.training_months :]
    recent = [row for row in rows if not last or month_of(row) in last]
    known = mentions(rows, catalog) > 0
    for row in distinct_prompts(rows):
        known[list(catalog.indices_of_titles(row["seen_titles"]))] = True
    trained = [(row["messages"], person_of(row)) for row in distinct_prompts(recent)]
    return Watched(
        since,
        until,
        window,
        read_feedback(store, catalog, since - timedelta(days=settings.before_days), since),
        draw([(json.loads(messages), person) for messages, person in stored.select("messages", "person").rows()]),
        Training(draw(trained), mentions(recent, catalog), known),
        [str(item) for item in catalog.items],
    )
