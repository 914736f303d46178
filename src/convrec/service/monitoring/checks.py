"""The checks: a figure with its interval, its limit, and a verdict. Pure functions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from convrec.classical.embedding import Embedder
from convrec.service.monitoring.settings import Checks
from convrec.service.monitoring.statistics import (
    MIN_PERSONS,
    Span,
    classifier_test,
    fall_span,
    item_distance,
    mean_span,
    quantile_span,
    wilson,
)
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
        start, sample = f"{self.name}: {self.status}: ", f"{self.n:,} {self.unit}"
        if self.status == TOO_FEW:
            return f"{start}{sample}, at least {self.min_sample:,} are needed"
        detail = f"; {self.detail}" if self.detail else ""
        return f"{start}{self.figure:.3f} [{self.low:.3f}, {self.high:.3f}] (at most {self.limit:g}; {sample}){detail}"


class _Judge(NamedTuple):
    """The size of a check's sample, its unit, its persons (none if the answers are independent), and its measure."""

    n: int
    unit: str
    persons: Sequence[Sequence[str] | np.ndarray | pl.Series]
    measure: Callable[[], tuple[Span, str]]


def run_checks(checks: Checks, found: Watched, embedder: Callable[[list[str]], Embedder], seed: int) -> list[Check]:
    """Return the checks of the settings, in their order. `embedder` makes an embedder fitted on texts."""
    ours, theirs, liked = found.conversations, found.training.conversations, found.training.liked
    now, before = found.window.answers, found.before.answers
    accepted, (items_before, persons_before) = _accepted(found.window), _accepted(found.before)
    accepted_before = np.bincount(items_before, minlength=len(liked))
    named = np.bincount(theirs.items()[0], minlength=len(liked))
    seconds = now["latency_seconds"].drop_nulls().to_numpy()

    def conversations() -> tuple[Span, str]:
        texts, persons = [ours.texts, theirs.texts], [ours.persons, theirs.persons]
        span = classifier_test(embedder([*ours.texts, *theirs.texts]), texts, persons, seed)
        return span, f"against {len(theirs.texts):,} of training"

    def distance(
        sample: tuple[np.ndarray, np.ndarray], reference: np.ndarray, unit: str, *others: np.ndarray
    ) -> _Judge:
        # Without a reference, for instance of conversations that name no title, there is nothing to compare with.
        n = min(len(persons) for persons in (sample[1], *others)) if reference.sum() else 0
        return _Judge(n, unit, [sample[1], *others], lambda: (item_distance(*sample, reference, seed), ""))

    judges: dict[str, _Judge] = {
        "conversations": _Judge(len(ours.texts), "conversations", [ours.persons, theirs.persons], conversations),
        "named_items": distance(ours.items(), named, "titles"),
        "accepted_items": distance(accepted, liked, "accepted items"),
        # What the model prefers to show cancels out.
        "accepted_before": distance(accepted, accepted_before, "accepted items", persons_before),
        "new_items": _new_items(found),
        # Without earlier acceptances, nothing could have fallen.
        "acceptance": _Judge(
            min(len(now), len(before)) if before["accepted"].sum() else 0,
            "answers",
            [now["person"], before["person"]],
            lambda: _fall(found),
        ),
        # The service is slow or wrong, whoever asks; but the same user may leave it nothing to list again and again.
        "latency_p95_seconds": _Judge(len(seconds), "answers", [], lambda: (quantile_span(seconds, 0.95), "")),
        "not_in_catalog": _share(now.filter(pl.col("num_items") > 0)["is_wrong"], "answers with items"),
        "empty_answers": _share(now["num_items"] == 0, "answers", now["person"]),
    }
    made = []
    for name, limit in checks:
        if limit is None:
            continue
        judge = judges[name]
        rule: dict[str, Any] = {"limit": limit.max, "n": judge.n, "min_sample": limit.min_sample, "unit": judge.unit}
        persons = min((len(np.unique(sample)) for sample in judge.persons), default=MIN_PERSONS)
        if judge.n < limit.min_sample:
            made.append(Check(name, TOO_FEW, None, None, None, **rule))
        elif persons < MIN_PERSONS:
            rule |= {"n": persons, "min_sample": MIN_PERSONS, "unit": "users"}
            made.append(Check(name, TOO_FEW, None, None, None, **rule))
        else:
            span, detail = judge.measure()
            made.append(Check(name, ALARM if span.low > limit.max else OK, *span[:3], **rule, detail=detail))
    return made


def _accepted(feedback: Feedback) -> tuple[np.ndarray, np.ndarray]:
    """Return the catalog items that were accepted, and the persons."""
    rows = feedback.accepted.filter(pl.col("item") != OUTSIDE)
    return rows["item"].to_numpy(), rows["person"].to_numpy()


def _share(flags: pl.Series, unit: str, persons: pl.Series | None = None) -> _Judge:
    count, n = int(flags.sum()), len(flags)

    def measure() -> tuple[Span, str]:
        span = wilson(count, n) if persons is None else mean_span(flags.to_numpy().astype(float), persons.to_numpy())
        return span._replace(low=max(0.0, span.low)), f"{count:,} answers"

    return _Judge(n, unit, [] if persons is None else [persons], measure)


def _new_items(found: Watched) -> _Judge:
    named, persons = found.conversations.items()
    accepted = found.window.accepted
    items = np.concatenate([named, accepted["item"].to_numpy()])
    everyone = np.concatenate([persons, accepted["person"].to_numpy().astype(str)])

    def measure() -> tuple[Span, str]:
        new = ~np.append(found.training.known, False)[items]  # OUTSIDE is the last
        span = mean_span(new.astype(float), everyone)
        counts = np.bincount(items[new & (items != OUTSIDE)], minlength=len(found.titles))
        first = [item for item in np.argsort(-counts, kind="stable")[:_SHOWN_NAMES] if counts[item]]
        detail = ", ".join(f"{found.titles[item]} ({counts[item]})" for item in first)
        return span._replace(low=max(0.0, span.low)), detail

    return _Judge(len(items), "named and accepted items", [everyone], measure)


def acceptance(answers: pl.DataFrame) -> Span:
    """Return the mean number of accepted items of an answer."""
    return mean_span(answers["accepted"].to_numpy(), answers["person"].to_numpy())


def _fall(found: Watched) -> tuple[Span, str]:
    now, before = acceptance(found.window.answers), acceptance(found.before.answers)
    detail = f"{now.figure:.2f} per answer, {before.figure:.2f} in the {before.n:,} answers before"
    return fall_span(now, before), detail
