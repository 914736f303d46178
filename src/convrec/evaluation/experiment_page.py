"""The page of an online experiment: its sides, the confidence sequence over time, and the p-value."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.evaluation.page import BLUE, GREY, PALE, VERMILLION, figure, render_page
from convrec.evaluation.sequential import Look


def sequence_figure(looks: Sequence[Look], times: Sequence[datetime], no_difference: float) -> Markup:
    """Return a plot of the estimate with its confidence sequence over time, and a line at `no_difference`."""
    known = [(time, look) for time, look in zip(times, looks, strict=True) if np.isfinite(look.low)]
    at = [time.isoformat() for time, _ in known]
    edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    traces = [
        go.Scatter(x=at, y=[look.low for _, look in known], **edge),
        go.Scatter(
            x=at,
            y=[look.high for _, look in known],
            **{**edge, "showlegend": True, "fill": "tonexty", "fillcolor": PALE, "name": "confidence sequence"},
        ),
        go.Scatter(
            x=at,
            y=[look.mean for _, look in known],
            name="estimate",
            mode="lines",
            line={"color": BLUE, "width": 2},
            customdata=[(look.low, look.high, look.answers) for _, look in known],
            hovertemplate="%{y:.4f} (%{customdata[0]:.4f} to %{customdata[1]:.4f}), %{customdata[2]} answers"
            "<extra></extra>",
        ),
        _line(times, no_difference, "no difference"),
    ]
    return figure("sequence", traces, "time (UTC)", "estimate", 360)


def p_figure(looks: Sequence[Look], times: Sequence[datetime], alpha: float) -> Markup:
    """Return a plot of the always-valid p-value over time, on a logarithmic axis, with a line at alpha."""
    at = [time.isoformat() for time in times]
    values = [max(look.p, 1e-12) for look in looks]
    traces = [
        go.Scatter(x=at, y=values, name="p-value", mode="lines", line={"color": VERMILLION, "width": 2, "shape": "hv"}),
        _line(times, alpha, f"alpha = {alpha:g}"),
    ]
    lowest = np.log10(min([alpha, *values])) - 0.3
    axis: dict[str, Any] = {"type": "log", "range": [lowest, 0.1], "exponentformat": "power"}
    return figure("p", traces, "time (UTC)", "p-value", 260, **axis)


def _line(times: Sequence[datetime], height: float, name: str) -> go.Scatter:
    """Return a horizontal line over the whole time, which makes the plots' axes alike."""
    ends = [times[0].isoformat(), times[-1].isoformat()]
    line = {"color": GREY, "width": 1.5, "dash": "dot"}
    return go.Scatter(x=ends, y=[height] * len(ends), name=name, mode="lines", line=line, hoverinfo="skip")


def render_experiment(
    *,
    title: str,
    caption: str,
    facts: Sequence[Mapping[str, str]],
    words: Sequence[str],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    looks: Sequence[Look],
    times: Sequence[datetime],
    no_difference: float,
    estimate: str,
    alpha: float,
) -> str:
    """Return the page: `facts` have `label`, `value` and `note`; `rows` are the sides; `estimate` is its name."""
    figures: dict[str, Any] = {}
    if any(np.isfinite(look.low) for look in looks):
        figures["sequence"] = sequence_figure(looks, times, no_difference)
    if looks:
        figures["p"] = p_figure(looks, times, alpha)
    return render_page(
        "experiment.html.j2",
        title=title,
        caption=caption,
        facts=facts,
        words=words,
        columns=columns,
        rows=rows,
        figures=figures,
        estimate=estimate,
        alpha=alpha,
    )
