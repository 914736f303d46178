"""The plots at the top of the report: the score of every system, and curves of the Rank-GRPO training."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.page import BLUE, GREY, PURPLE, VERMILLION, curve, figure, smoothed
from convrec.evaluation.systems import CONSTRAINED

RANK_GROUPS = {"ranks 1–5": (1, 5), "ranks 6–10": (6, 10), "ranks 11–20": (11, 20)}
COLORS = {"sft": BLUE, "rank_grpo": VERMILLION}  # as in the plots of the sections


def ladder_figure(evaluation: Mapping[str, Any], systems: Mapping[str, str], metric: str) -> Markup:
    """Return a plot of each system's mean and 95 % interval, highest first, with the oracle as a line."""
    keys = sorted((key for key in systems if key != "oracle"), key=lambda key: -evaluation[key][metric])
    traces = []
    for place, key in enumerate(keys):
        scores = evaluation[key]
        mean, bounds = scores[metric], scores["intervals"][metric]
        color = COLORS.get(key.removesuffix(CONSTRAINED), GREY)
        traces.append(
            go.Scatter(
                x=[mean],
                y=[place],
                mode="markers+text",
                cliponaxis=False,
                marker={"color": color, "size": 9, "symbol": "circle" if key.endswith(CONSTRAINED) else "circle-open"},
                error_x={
                    "symmetric": False,
                    "array": [bounds["high"] - mean],
                    "arrayminus": [mean - bounds["low"]],
                    "color": color,
                    "width": 0,
                    "thickness": 2,
                },
                text=[f"{mean:.3f}"],
                textposition="top center",
                textfont={"size": 11, "color": color},
                hovertemplate=f"{mean:.3f} ({bounds['low']:.3f} to {bounds['high']:.3f})<extra></extra>",
                showlegend=False,
            )
        )
    if "oracle" in systems:
        best = evaluation["oracle"][metric]
        traces.append(
            go.Scatter(
                x=[best, best],
                y=[-0.6, len(keys) - 0.4],
                mode="lines+text",
                line={"color": GREY, "width": 1.5, "dash": "dot"},
                text=["", f"oracle {best:.3f}"],
                textposition="top left",
                textfont={"size": 11, "color": GREY},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    axis: dict[str, Any] = {
        "tickvals": list(range(len(keys))),
        "ticktext": [systems[key] for key in keys],
        "range": [len(keys) - 0.4, -0.8],
        "showgrid": False,
        "ticklabelstandoff": 8,
    }
    return figure("ladder", traces, metric_label(metric), "", 430, {"rangemode": "tozero"}, **axis)


def group_figure(frame: pd.DataFrame) -> Markup:
    """Return a plot of the smoothed mean reward of each group of ranks over the steps."""
    traces = []
    for (name, (first, last)), color in zip(RANK_GROUPS.items(), (BLUE, VERMILLION, PURPLE), strict=True):
        rows = frame[frame["rank"].between(first, last)]
        if not rows.empty:
            means = rows.groupby("step", as_index=False)["reward"].mean()
            traces.append(curve(means.assign(reward=smoothed(means["reward"])), "reward", name, color))
    return figure("groups", traces, "", "reward", 165, rangemode="tozero", nticks=4)


def course_figure(frame: pd.DataFrame, column: str, name: str, title: str, color: str, symbol: str | None) -> Markup:
    """Return a small plot of one column over the steps."""
    line = curve(frame, column, name, color, symbol).update(showlegend=False)
    return figure(
        name,
        [line],
        "step" if name == "kl" else "",
        title,
        125,
        layout={"margin": {"l": 8, "r": 8, "t": 8, "b": 8}},
        rangemode="tozero",
        nticks=4,
    )


def story_figures(
    plots: Mapping[str, pd.DataFrame], evaluation: Mapping[str, Any], systems: Mapping[str, str], headline: str
) -> dict[str, Markup]:
    """Return the plots at the top of the report by name; plots without points are absent."""
    figures = {"ladder": ladder_figure(evaluation, systems, headline)}
    if not plots["reward_by_rank"].empty:
        figures["groups"] = group_figure(plots["reward_by_rank"])
    if not plots["validation"].empty:
        frame = plots["validation"]
        figures["course"] = course_figure(frame, headline, "course", metric_label(headline), VERMILLION, "square")
    if not plots["reward"].empty:
        frame = plots["reward"].assign(kl=smoothed(plots["reward"]["kl"]))
        figures["kl"] = course_figure(frame, "kl", "kl", "KL", GREY, None)
    return figures
