"""Plots of the trainings: loss and reward by step, validation of the checkpoints."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.page import BLUE, GREY, INK, LINES, PALE, VERMILLION, curve, figure, smoothed

RING = {"symbol": "circle-open", "size": 17, "color": INK, "line": {"width": 2.5}}


def step_figure(frame: pd.DataFrame, column: str, name: str, title: str) -> Markup:
    """Return a plot of a column by step, with a centred running mean over a tenth of the steps."""
    traces = [curve(frame, column, "each step", PALE)]
    if len(frame) >= 20:
        traces.append(curve(frame.assign(**{column: smoothed(frame[column])}), column, "running mean", BLUE))
    return figure(name, traces, "step", title)


def _chosen(frame: pd.DataFrame, column: str, chosen: int) -> list[go.Scatter]:
    """Return a ring around the chosen checkpoint's point; an empty list if it was not validated."""
    row = frame[frame["step"] == chosen]
    ring = curve(row, column, f"chosen: step {chosen:,}", INK)
    return [] if row.empty else [ring.update(mode="markers", marker=RING, hoverinfo="skip")]


def _level(frame: pd.DataFrame, column: str, name: str) -> list[go.Scatter]:
    """Return a horizontal line at the value of step 0, the starting model; an empty list without step 0."""
    start = frame.loc[frame["step"] == 0, column].tolist()
    ends = pd.DataFrame({"step": [frame["step"].min(), frame["step"].max()], column: start * 2}) if start else None
    return [] if ends is None else [curve(ends, column, name, GREY).update(line_dash="longdash", line_width=1.5)]


def validation_figures(frame: pd.DataFrame, cutoffs: Sequence[int], chosen: int, start: str) -> dict[str, Markup]:
    """Return plots of the checkpoints' NDCG@K, Recall@K, and in-catalog and exact-format shares, by name.

    A ring marks the chosen checkpoint at the largest cutoff. A line marks the value of step 0, the model `start`.
    """
    figures = {}
    for metric, title in (("ndcg", "NDCG"), ("recall", "Recall")):
        columns = [f"{metric}_at_{k}" for k in sorted(cutoffs, reverse=True)]
        traces = [
            curve(frame, column, metric_label(column), *LINES[place % len(LINES)])
            for place, column in enumerate(columns)
        ]
        traces += _level(frame, columns[0], f"{start}, {metric_label(columns[0])}")
        figures[f"validation_{metric}"] = figure(
            f"validation_{metric}", [*traces, *_chosen(frame, columns[0], chosen)], "step", title
        )
    shown = {"in_catalog": "in catalog", "format": "exact format"}
    traces = [curve(frame, column, name, *LINES[place]) for place, (column, name) in enumerate(shown.items())]
    traces += _chosen(frame, "in_catalog", chosen)
    figures["validation_lists"] = figure(
        "validation_lists", traces, "step", "share", tickformat=".0%", rangemode="tozero"
    )
    return figures


def training_figures(
    plots: Mapping[str, pd.DataFrame], cutoffs: Sequence[int], chosen: int, start: str
) -> dict[str, Markup]:
    """Return the plots of the trainings as HTML by name; a plot is absent if the run was too short to log points."""
    figures = {}
    if not plots["sft"].empty:
        losses = {"loss": ("training", BLUE, None), "validation_loss": ("validation", VERMILLION, "square")}
        lines = [curve(plots["sft"].dropna(subset=name), name, *style) for name, style in losses.items()]
        figures["sft"] = figure("sft", lines, "step", "loss")
    if not plots["reward"].empty:
        figures["reward"] = step_figure(plots["reward"], "hits", "reward", "hits per list")
        if plots["reward"]["entropy"].notna().any():
            figures["entropy"] = step_figure(plots["reward"], "entropy", "entropy", "entropy, nats")
    if not plots["validation"].empty:
        figures |= validation_figures(plots["validation"], cutoffs, chosen, start)
    return figures
