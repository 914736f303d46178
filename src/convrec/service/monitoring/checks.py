"""The checks: a figure with its interval, its limit, and a verdict. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from convrec.classical.embedding import Embedder
from convrec.service.monitoring.settings import Checks
from convrec.service.monitoring.statistics import (
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
        found = "" if self.figure is None else f" {self.figure:.3f} [{self.low:.3f}, {self.high:.3f}]"
        sample = f"{self.n:,} {self.unit}"
        if self.status == TOO_FEW:
            sample += f", at least {self.min_sample:,} are needed"
        detail = f"; {self.detail}" if self.detail else ""
        return f"{self.name}: {self.status}:{found} (at most {self.limit:g}; {sample}){detail}"


_Judge = tuple[int, str, Callable[[], tuple[Span, str]]]  # the sample's size and unit, and what measures it


def run_checks(checks: Checks, found: Watched, embedder: Callable[[list[str]], Embedder], seed: int) -> list[Check]:
    """Return the checks of the settings, in their order. `embedder` makes an embedder fitted on texts."""
    ours, theirs, liked = found.conversations, found.training.conversations, found.training.liked
    now, before = found.window.answers, found.before.answers
    accepted = _accepted(found.window)
    accepted_before = np.bincount(_accepted(found.before)[0], minlength=len(liked))
    named = np.bincount(theirs.items()[0], minlength=len(liked))
    seconds = now["latency_seconds"].drop_nulls().to_numpy()

    def conversations() -> tuple[Span, str]:
        texts, persons = [ours.texts, theirs.texts], [ours.persons, theirs.persons]
        span = classifier_test(embedder([*ours.texts, *theirs.texts]), texts, persons, seed)
        return span, f"against {len(theirs.texts):,} of training"

    def distance(sample: tuple[np.ndarray, np.ndarray], reference: np.ndarray, unit: str, size: int = 0) -> _Judge:
        # Without a reference, for instance of conversations that name no title, there is nothing to compare with.
        n = min(len(sample[0]), size or len(sample[0])) if reference.sum() else 0
        return n, unit, lambda: (item_distance(*sample, reference, seed), "")

    judges: dict[str, _Judge] = {
        "conversations": (len(ours.texts), "conversations", conversations),
        "named_items": distance(ours.items(), named, "titles"),
        "accepted_items": distance(accepted, liked, "accepted items"),
        # What the model prefers to show cancels out.
        "accepted_before": distance(accepted, accepted_before, "accepted items", int(accepted_before.sum())),
        "new_items": _new_items(found),
        # Without earlier acceptances, nothing could have fallen.
        "acceptance": (min(len(now), len(before)) if before["accepted"].sum() else 0, "answers", lambda: _fall(found)),
        "latency_p95_seconds": (len(seconds), "answers", lambda: (quantile_span(seconds, 0.95), "")),
        "not_in_catalog": _share(_with_wrong_items(found.window.shown), "answers with items"),
        "empty_answers": _share(~now["answer_id"].is_in(found.window.shown["answer_id"].implode()), "answers"),
    }
    made = []
    for name, limit in checks:
        if limit is None:
            continue
        n, unit, measure = judges[name]
        rule = {"limit": limit.max, "n": n, "min_sample": limit.min_sample, "unit": unit}
        if n < limit.min_sample:
            made.append(Check(name, TOO_FEW, None, None, None, **rule))
        else:
            span, detail = measure()
            made.append(Check(name, ALARM if span.low > limit.max else OK, *span[:3], **rule, detail=detail))
    return made


def _accepted(feedback: Feedback) -> tuple[np.ndarray, np.ndarray]:
    """Return the catalog items that were accepted, and the persons."""
    rows = feedback.shown.filter("accepted", pl.col("item") != OUTSIDE)
    return rows["item"].to_numpy(), rows["person"].to_numpy()


def _share(flags: pl.Series, unit: str) -> _Judge:
    count, n = int(flags.sum()), len(flags)
    return n, unit, lambda: (wilson(count, n), f"{count:,} answers")


def _with_wrong_items(shown: pl.DataFrame) -> pl.Series:
    """Return for each answer with items whether one of them is unknown, or twice in a list."""
    wrong = (pl.col("item") == OUTSIDE).any() | (pl.col("item_id").n_unique() < pl.len())
    return shown.group_by("answer_id", "list").agg(wrong).group_by("answer_id").agg(pl.col("item").any())["item"]


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


def acceptance(answers: pl.DataFrame) -> Span:
    """Return the mean number of accepted items of an answer."""
    return mean_span(answers["accepted"].to_numpy(), answers["person"].to_numpy())


def _fall(found: Watched) -> tuple[Span, str]:
    now, before = acceptance(found.window.answers), acceptance(found.before.answers)
    detail = f"{now.figure:.2f} per answer, {before.figure:.2f} in the {before.n:,} answers before"
    return fall_span(now, before), detail
