"""The monitoring report: one self-contained HTML file, in the style of the evaluation's. Users' texts are not shown."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import polars as pl
from markupsafe import Markup

from convrec.evaluation.headline import Fact
from convrec.evaluation.page import GREY, LINES, curve, errors, figure, render_page
from convrec.service.monitoring.checks import ALARM, TOO_FEW, Check, acceptance
from convrec.service.monitoring.settings import Checks
from convrec.service.monitoring.statistics import Span, independent_units, wilson
from convrec.service.monitoring.window import OUTSIDE, Feedback, Watched

_MOVED = 8  # items in the table of those that gained or lost most


def render_report(watched: Watched, checks: Sequence[Check], model: str, tested: str = "") -> str:
    """Return the page; `model` names what is served, `tested` is its result on the test split."""
    both = {"this window": watched.window, "before": watched.before}
    figures = {"weeks": _weeks_figure(watched), "ranks": _ranks_figure(both)}
    return render_page(
        "monitoring.html.j2",
        folder="service/monitoring",
        watched=watched,
        checks=checks,
        model=model,
        names={name: field.title for name, field in Checks.model_fields.items()},
        too_few=TOO_FEW,
        facts=_facts(watched, checks, tested),
        figures={name: plot for name, plot in figures.items() if plot},
        moved=_moved(watched),
    )


def _facts(watched: Watched, checks: Sequence[Check], tested: str) -> list[Fact]:
    answers, alarms = watched.window.answers, sum(check.status == ALARM for check in checks)
    judged = sum(check.status != TOO_FEW for check in checks)
    facts = [
        Fact("Alarms", str(alarms) if alarms else "none", f"{judged} of {len(checks)} checks have enough data"),
        Fact("Answers", f"{len(answers):,}", f"{answers['person'].n_unique():,} users"),
    ]
    if len(answers):
        span = acceptance(answers)
        interval = f"95 % interval {span.low:.2f} to {span.high:.2f}"
        if np.isnan(span.low):
            interval = "too few users for an interval"
        facts.append(Fact("Accepted per answer", f"{span.figure:.2f}", interval))
        stored = 1 - answers["messages"].null_count() / len(answers)
        facts.append(Fact("Conversations stored", f"{stored:.0%}", "of the answers"))
    if watched.window.num_foreign:
        note = "not counted: items of another project, or all retired"
        facts.append(Fact("Answers without a catalog item", f"{watched.window.num_foreign:,}", note))
    return [*facts, Fact("Test of the champion", tested, "when it was registered")] if tested else facts


def _points(spans: Sequence[Span], x: Sequence[object], name: str, place: int, text: str) -> go.Scatter:
    frame = pd.DataFrame(spans, columns=["mean", "low", "high", "n"]).assign(x=x)
    return curve(frame, "mean", name, *LINES[place], x="x").update(
        error_y=errors(frame, LINES[place][0]),
        customdata=frame[["low", "high", "n"]].to_numpy().tolist(),
        hovertemplate=text + ": %{y:.3f} (%{customdata[0]:.3f} to %{customdata[1]:.3f}), n = %{customdata[2]:,}",
    )


def _weeks_figure(watched: Watched) -> Markup | None:
    """Return a plot of the acceptances per answer of each seven days with answers, counted back from the end."""
    both = (watched.before.answers, watched.window.answers)
    answers = pl.concat([part.select("time", "person", "accepted") for part in both])
    back = ((watched.until - pl.col("time")).dt.total_seconds() / timedelta(days=7).total_seconds()).ceil()
    parts = answers.with_columns(back.clip(1).cast(pl.Int64).alias("back")).partition_by("back", as_dict=True)
    if not parts:
        return None
    found = sorted(parts.items(), reverse=True)
    starts = [f"{watched.until - int(number) * timedelta(days=7):%Y-%m-%d}" for (number,), _ in found]
    traces = [_points([acceptance(part) for _, part in found], starts, "accepted per answer", 0, "week from %{x}")]
    mark = {"type": "line", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": GREY, "dash": "dot"}}
    begin = f"{watched.since:%Y-%m-%d}"
    shapes = [{**mark, "x0": begin, "x1": begin}] if begin in starts else []
    layout = {"shapes": shapes, "showlegend": False}
    axis = {"type": "category"}
    return figure("weeks", traces, "first day", "accepted per answer", 320, axis, layout, rangemode="tozero")


def _ranks_figure(both: dict[str, Feedback]) -> Markup | None:
    """Return a plot of the share of shown items that were accepted, with Wilson's interval by user, by rank."""
    traces = []
    for place, (name, feedback) in enumerate(both.items()):
        persons = feedback.answers["person"].to_numpy()
        part = independent_units(persons) / max(1, len(persons))  # of the answers, and so of the items at each rank
        spans = {rank: wilson(accepted, n, part * n) for rank, n, accepted in feedback.ranks.iter_rows()}
        if spans:
            traces.append(_points(list(spans.values()), list(spans), name, place, "rank %{x}"))
    return figure("ranks", traces, "rank", "share accepted", 320, rangemode="tozero") if traces else None


def _moved(watched: Watched) -> list[dict[str, Any]]:
    """Return the items whose share among named and accepted items moved most: `title`, share `before` and `now`."""
    training = watched.training
    accepted = watched.window.accepted["item"].to_numpy()
    now = np.concatenate([watched.conversations.items()[0], accepted[accepted != OUTSIDE]])
    then = training.liked + np.bincount(training.conversations.items()[0], minlength=len(training.liked))
    if not len(now) or not then.sum():
        return []
    shares = then / then.sum(), np.bincount(now, minlength=len(then)) / len(now)
    order = np.argsort(-np.abs(shares[1] - shares[0]), kind="stable")[:_MOVED]
    return [{"title": watched.titles[item], "before": shares[0][item], "now": shares[1][item]} for item in order]
