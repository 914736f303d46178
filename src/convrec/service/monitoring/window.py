"""What the service did in a time, and what the model was trained on, in the form that the checks compare."""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from convrec.data.catalog import Catalog
from convrec.data.conversations import distinct_prompts, month_of, person_of
from convrec.data.mentions import Mentions
from convrec.evaluation.beyond_accuracy import mentions
from convrec.service.arms import CHALLENGER
from convrec.service.feedback import FeedbackStore
from convrec.service.monitoring.settings import Monitoring

logger = logging.getLogger(__name__)

OUTSIDE = -1  # the index of an item that is not in the catalog


class Feedback(NamedTuple):
    """The answers of a time, without those of a challenger.

    `answers` has one row an answer: `answer_id`, `time`, `person`, `latency_seconds`, `messages` (JSON, or null),
    `num_items`, `accepted`, the number of accepted items, and `is_wrong`, whether an item is unknown, or twice in a
    list. `accepted` has one row an accepted item: `person` and `item` (its catalog index, or `OUTSIDE`). `ranks` has
    `rank`, and the number of items that were shown there and `accepted`. `num_foreign` answers are in none of them.
    """

    answers: pl.DataFrame
    accepted: pl.DataFrame
    ranks: pl.DataFrame
    num_foreign: int


def read_feedback(
    store: FeedbackStore, catalog: Catalog, since: datetime, until: datetime, with_messages: bool = True
) -> Feedback:
    """Return the feedback from `since` to before `until`. An answer without a user is a person of its own.

    Answers with items, but none of the catalog, are foreign: those of another project's model, or of retired items
    alone. Their versions do not tell which, so that they are only counted.
    """
    parts = [_read_period(store, catalog, *period, with_messages) for period in store.periods(since, until)]
    answers, accepted, ranks = (pl.concat(frames) for frames in zip(*(part[:3] for part in parts), strict=True))
    ranks = ranks.group_by("rank").agg(pl.col("shown", "accepted").sum()).sort("rank")
    if num_foreign := sum(part.num_foreign for part in parts):
        logger.warning("%s answers without any item of the catalog do not count", f"{num_foreign:,}")
    return Feedback(answers, accepted, ranks, num_foreign)


def _read_period(
    store: FeedbackStore, catalog: Catalog, since: datetime | None, until: datetime | None, with_messages: bool
) -> Feedback:
    watched = pl.col("arm").is_null() | (pl.col("arm") != CHALLENGER)  # its experiment watches the challenger
    person = pl.coalesce("user_id", "answer_id").alias("person")
    is_lost = pl.col("experiment").is_not_null() & (pl.col("num_items") == 0)  # only experiments record these
    answers = store.answers(since, until).filter(watched, ~is_lost).with_columns(person).drop("num_items")
    shown = store.outcomes(since, until).filter(watched, pl.col("list") != CHALLENGER).with_columns(person)
    indices = [catalog.index_of_id(item) for item in shown["item_id"]]
    items = pl.Series("item", [OUTSIDE if index is None else index for index in indices], dtype=pl.Int64)
    shown = shown.with_columns(items)
    foreign = shown.group_by("answer_id").agg((pl.col("item") == OUTSIDE).all()).filter("item")
    answers, shown = (frame.join(foreign, on="answer_id", how="anti") for frame in (answers, shown))
    wrong = (pl.col("item") == OUTSIDE).any() | (pl.col("item_id").n_unique() < pl.len())
    listed = (
        pl.len().cast(pl.Int64).alias("num_items"),
        pl.col("accepted").sum().cast(pl.Int64),
        wrong.alias("is_wrong"),
    )
    lists = shown.group_by("answer_id", "list").agg(*listed)
    counts = lists.group_by("answer_id").agg(pl.col("num_items", "accepted").sum(), pl.col("is_wrong").any())
    answers = answers.join(counts, on="answer_id", how="left", maintain_order="left")
    answers = answers.with_columns(pl.col("num_items", "accepted").fill_null(0), pl.col("is_wrong").fill_null(False))
    if not with_messages:
        answers = answers.with_columns(messages=pl.lit(None, pl.String))
    return Feedback(
        answers.select(
            "answer_id", "time", "person", "latency_seconds", "messages", "num_items", "accepted", "is_wrong"
        ),
        shown.filter("accepted").select("person", "item"),
        shown.group_by("rank").agg(pl.len().alias("shown"), pl.col("accepted").sum()),
        len(foreign),
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

    def draw(conversations: Sequence[tuple[Any, str]], read: Callable[[Any], list[dict[str, str]]]) -> Conversations:
        places = np.random.default_rng(seed).permutation(len(conversations))[: settings.max_conversations]
        drawn = [conversations[place] for place in sorted(places)]
        said = ([part["content"] for part in read(messages) if part["role"] == "user"] for messages, _ in drawn)
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
        read_feedback(store, catalog, since - timedelta(days=settings.before_days), since, with_messages=False),
        draw(stored.select("messages", "person").rows(), json.loads),
        Training(draw(trained, list), mentions(recent, catalog), known),
        [str(item) for item in catalog.items],
    )
