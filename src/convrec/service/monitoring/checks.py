"""The checks: a figure with its interval, its limit, and a verdict. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from convrec.classical.embedding import Embedder
from convrec.service.monitoring.drift import classifier_test, item_distance
from convrec.service.monitoring.intervals import Span, fall_span, mean_span, quantile_span, wilson
from convrec.service.monitoring.settings import Checks
from convrec.service.monitoring.window import OUTSIDE, Feedback, Watched

OK, ALARM, TOO_FEW = "ok", "alarm", "not enough data"
_SHOWN_NAMES = 5  # titles in a detail


@dataclass(frozen=True)
class Check:
    """A check's verdict: `ok`, `alarm` or `not enough data`; figure and interval are None without a sample.

    `n` is the size of the sample, `min_sample` the smallest that is judged; `unit` says what is counted.
    """

    name: str
    status: str
    figure: float | None
    low: float | None
    high: float | None
    limit: float
    n: int
    min_sample: int
    unit: str
    detail: str = ""

    def __str__(self) -> str:
        found = "" if self.figure is None else f" {self.figure:.3f} [{self.low:.3f}, {self.high:.3f}]"
        sample = f"{self.n:,} {self.unit}"
        if self.status == TOO_FEW:
            sample += f", at least {self.min_sample:,} are needed"
        detail = f"; {self.detail}" if self.detail else ""
        return f"{self.name}: {self.status}:{found} (at most {self.limit:g}; {sample}){detail}"


_Judge = tuple[int, str, Callable[[], tuple[Span, str]]]  # the sample's size and unit, and what measures it


def run_checks(checks: Checks, found: Watched, embedder: Callable[[list[str]], Embedder], seed: int) -> list[Check]:
    """Return the checks of the settings, in their order. `embedder` makes an embedder fitted on texts."""
    liked = found.training.liked
    named = np.bincount(found.training.conversations.items()[0], minlength=len(liked))
    judges: dict[str, Callable[[], _Judge]] = {
        "conversations": lambda: _conversations(found, embedder, seed),
        "named_items": lambda: _distance(*found.conversations.items(), named, "titles", seed),
        "accepted_items": lambda: _distance(*_items(found.window, True), liked, "accepted items", seed),
        "accepted_before": lambda: _accepted_before(found, seed),
        "shown_items": lambda: _distance(*_items(found.window, False), liked, "shown items", seed),
        "new_items": lambda: _new_items(found),
        "dead_items": lambda: _dead_items(found),
        "acceptance": lambda: _acceptance(found),
        "latency_p95_seconds": lambda: _latency(found.window),
        "not_in_catalog": lambda: _not_in_catalog(found.window),
        "empty_answers": lambda: _empty(found.window),
    }
    made = []
    for name in Checks.model_fields:
        limit = getattr(checks, name)
        if limit is None:
            continue
        n, unit, measure = judges[name]()
        if n < limit.min_sample:
            made.append(Check(name, TOO_FEW, None, None, None, limit.max, n, limit.min_sample, unit))
            continue
        span, detail = measure()
        status = ALARM if span.low > limit.max else OK
        made.append(Check(name, status, *span[:3], limit.max, n, limit.min_sample, unit, detail))
    return made


def _conversations(found: Watched, embedder: Callable[[list[str]], Embedder], seed: int) -> _Judge:
    ours, theirs = found.conversations, found.training.conversations

    def measure() -> tuple[Span, str]:
        texts, persons = [ours.texts, theirs.texts], [ours.persons, theirs.persons]
        span = classifier_test(embedder([*ours.texts, *theirs.texts]), texts, persons, seed)
        return span, f"against {len(theirs.texts):,} of training"

    return len(ours.texts), "conversations", measure


def _items(feedback: Feedback, accepted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the catalog items and persons of the accepted, or of all shown items."""
    rows = feedback.shown.filter(pl.col("item") != OUTSIDE)
    rows = rows.filter("accepted") if accepted else rows
    return rows["item"].to_numpy(), rows["person"].to_numpy()


def _distance(items: np.ndarray, persons: np.ndarray, reference: np.ndarray, unit: str, seed: int) -> _Judge:
    # Without a reference, for instance of conversations that name no title, there is nothing to compare with.
    return len(items) if reference.sum() else 0, unit, lambda: (item_distance(items, persons, reference, seed), "")


def _accepted_before(found: Watched, seed: int) -> _Judge:
    """Return the distance to the accepted items before the window: what the model prefers to show cancels out."""
    before, _ = _items(found.before, True)
    n, unit, measure = _distance(*_items(found.window, True), np.bincount(before, minlength=len(found.titles)),
                                 "accepted items", seed)  # fmt: skip
    return min(n, len(before)), unit, measure


def _new_items(found: Watched) -> _Judge:
    named, persons = found.conversations.items()
    accepted = found.window.shown.filter("accepted")
    items = np.concatenate([named, accepted["item"].to_numpy()])
    everyone = np.concatenate([persons, accepted["person"].to_numpy().astype(str)])

    def measure() -> tuple[Span, str]:
        new = ~np.append(found.training.known, False)[items]  # OUTSIDE is the last
        span = mean_span(new.astype(float), everyone)
        counts = np.bincount(items[new & (items != OUTSIDE)], minlength=len(found.titles))
        first = [item for item in np.argsort(-counts, kind="stable")[:_SHOWN_NAMES] if counts[item]]
        detail = ", ".join(f"{found.titles[item]} ({counts[item]})" for item in first)
        return span._replace(low=max(0.0, span.low)), detail

    return len(items), "named and accepted items", measure


def _dead_items(found: Watched) -> _Judge:
    items = found.window.shown["item"].to_numpy()
    size = len(found.titles)

    def measure() -> tuple[Span, str]:
        dead = size - len(np.unique(items[items != OUTSIDE]))
        share = dead / size  # of the whole catalog: it has no sampling error
        return Span(share, share, share, size), f"{dead:,} of {size:,} items"

    return len(items), "shown items", measure


def _acceptance(found: Watched) -> _Judge:
    now, before = (part.answers for part in (found.window, found.before))
    if not len(now) or not before["accepted"].sum():  # nothing that could have fallen
        return 0, "answers", lambda: (Span(0.0, 0.0, 0.0, 0), "")

    def measure() -> tuple[Span, str]:
        means = [mean_span(part["accepted"].to_numpy(), part["person"].to_numpy()) for part in (now, before)]
        detail = f"{means[0].figure:.2f} per answer, {means[1].figure:.2f} in the {len(before):,} answers before"
        return fall_span(*means), detail

    return min(len(now), len(before)), "answers", measure


def _latency(window: Feedback) -> _Judge:
    seconds = window.answers["latency_seconds"].drop_nulls().to_numpy()
    return len(seconds), "answers", lambda: (quantile_span(seconds, 0.95), "")


def _not_in_catalog(window: Feedback) -> _Judge:
    lists = ["answer_id", "list"]
    wrong = window.shown.group_by(lists).agg(
        ((pl.col("item") == OUTSIDE).any() | (pl.col("item_id").n_unique() < pl.len())).alias("wrong")
    )
    answers = wrong.group_by("answer_id").agg(pl.col("wrong").any())
    count = int(answers["wrong"].sum())
    return len(answers), "answers with items", lambda: (wilson(count, len(answers)), f"{count:,} answers")


def _empty(window: Feedback) -> _Judge:
    ids = window.answers["answer_id"]
    count = len(ids) - int(ids.is_in(window.shown["answer_id"].unique().to_list()).sum())
    return len(ids), "answers", lambda: (wilson(count, len(ids)), f"{count:,} answers")
