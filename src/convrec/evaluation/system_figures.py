"""Plots of the systems on the test split: scores with intervals by rank and slice, and constrained against free."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.page import LINES, dots, figure

STEP_OF_PIXELS = 34  # pixels between two positions of the vertical axis
BAND_OPACITY = 0.25
FROM_ZERO = {"rangemode": "tozero"}


def _place_axis(labels: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis with labels at positions 0, 1, …, from top to bottom."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": list(labels),
        "range": [len(labels) - 0.5, -0.5],
        "ticklabelstandoff": 8,
    }


def _height(places: int) -> int:
    return 110 + STEP_OF_PIXELS * max(2, places)


def _intervals(scores: Sequence[Mapping[str, Any]], metric: str) -> pd.DataFrame:
    """Return mean, low and high of a metric for each system, from the scores that the stage `evaluate` writes."""
    return pd.DataFrame([{"mean": score[metric], **score["intervals"][metric]} for score in scores])


def constrained_figure(
    evaluation: Mapping[str, Any], pairs: Mapping[str, str], systems: Mapping[str, str], metric: str
) -> Markup:
    """Return a plot of a metric of each model, free and constrained; `pairs` maps free systems to constrained ones."""
    labels = [systems[key] for key in pairs]
    traces = []
    for place, (name, keys) in enumerate({"free": list(pairs), "constrained": list(pairs.values())}.items()):
        scores = _intervals([evaluation[key] for key in keys], metric)
        above = [row + 0.24 * (place - 0.5) for row in range(len(labels))]
        traces.append(dots(scores, name, *LINES[place], above, labels))
    return figure("constrained", traces, metric_label(metric), "", _height(len(labels)), **_place_axis(labels))


def slice_figure(kind: str, slices: Mapping[str, Mapping[str, Any]], systems: Mapping[str, str], metric: str) -> Markup:
    """Return a plot of a metric of `systems` (names by key) on the slices of one kind.

    `slices` holds for each name `n_rows`, and for each system the metric's mean, low and high.
    """
    labels = [f"{name.replace('_', ' ')}<br>n = {part['n_rows']:,}" for name, part in slices.items()]
    traces = []
    for place, (key, system) in enumerate(systems.items()):
        scores = pd.DataFrame([part[key][metric] for part in slices.values()])
        above = [row + 0.24 * (place - (len(systems) - 1) / 2) for row in range(len(labels))]
        traces.append(dots(scores, system, *LINES[place], above, labels))
    height = _height(len(labels)) + 10 * len(labels)
    return figure(f"slice_{kind}", traces, metric_label(metric), "", height, FROM_ZERO, **_place_axis(labels))


def _band(frame: pd.DataFrame, color: str) -> go.Scatter:
    """Return the area between `low` and `high`, drawn along one and back along the other."""
    there, back = frame["rank"].tolist(), frame["rank"].tolist()[::-1]
    return go.Scatter(
        x=there + back,
        y=frame["high"].tolist() + frame["low"].tolist()[::-1],
        fill="toself",
        fillcolor=color,
        opacity=BAND_OPACITY,
        mode="none",
        hoverinfo="skip",
        showlegend=False,
    )


def hits_figure(ranks: Mapping[str, pd.DataFrame]) -> Markup:
    """Return a plot of the share of rows with a hit at each rank, with 95 % bands; `ranks`: see `rank_intervals`."""
    traces = []
    for (name, frame), (color, symbol) in zip(ranks.items(), LINES, strict=False):
        line = go.Scatter(
            x=frame["rank"].tolist(),
            y=frame["mean"].tolist(),
            name=name,
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"symbol": symbol, "size": 7},
            customdata=frame[["low", "high"]].to_numpy().tolist(),
            hovertemplate="rank %{x}: %{y:.4f} (%{customdata[0]:.4f} to %{customdata[1]:.4f})",
        )
        traces += [_band(frame, color), line]
    axis = {"tickvals": [rank for rank in frame["rank"].tolist() if rank == 1 or rank % 5 == 0]}
    return figure("hits", traces, "rank", "share of rows with a hit", 340, axis, rangemode="tozero")
