"""The plots of the report, as HTML by name; a plot without points is absent."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.data.conversations import SPLITS
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.page import (
    BARS,
    BLUE,
    GREY,
    INK,
    LINES,
    PALE,
    PURPLE,
    VERMILLION,
    curve,
    dots,
    figure,
    lines,
    smoothed,
)
from convrec.evaluation.systems import CONSTRAINED

# The curves of the stages that are drawn.
PLOTS = (
    *("rows_by_month", "catalog_popularity", "popularity", "adjust"),
    *("sft", "reward", "reward_by_rank", "validation"),
)
DEMONSTRATION_STEPS = {
    "teacher": "Teacher",
    "remap": "Remap",
    "reflect": "Reflect",
    "collaborative": "Collaborative",
    "adjust": "Adjust",
}
FROM_ZERO: dict[str, Any] = {"rangemode": "tozero"}
_MARKS = dict(zip(SPLITS, BARS, strict=False))
_FEW_MONTHS = 6  # below this, plotly would put ticks at weeks
_RING = {"symbol": "circle-open", "size": 17, "color": INK, "line": {"width": 2.5}}
_RANK_GROUPS = {"ranks 1–5": (1, 5), "ranks 6–10": (6, 10), "ranks 11–20": (11, 20)}


def data_figures(plots: Mapping[str, pd.DataFrame]) -> dict[str, Markup]:
    """Return the plots of the data: rows by month, and the popularity of the catalog's items."""
    figures, months = {}, plots["rows_by_month"]
    if not months.empty:
        bars = [
            go.Bar(x=part["month"].tolist(), y=part["rows"].tolist(), xperiod="M1", name=name, marker=_MARKS[name])
            for name in SPLITS
            if not (part := months[months["split"] == name]).empty
        ]
        period = pd.PeriodIndex(months["month"], freq="M")
        few = (period.max() - period.min()).n < _FEW_MONTHS
        axis = {"type": "date", "tickformat": "%b %Y", "ticklabelmode": "period", **({"dtick": "M1"} if few else {})}
        figures["rows_by_month"] = figure(
            "rows_by_month", bars, "", "rows", x_axis=axis, layout={"barmode": "stack"}, **FROM_ZERO
        )
    frame, percent = plots["catalog_popularity"], dict[str, Any](tickformat=".0%")
    figures["catalog_popularity"] = figure(
        "catalog_popularity",
        [
            curve(frame, "mentions", "ground truth of train", BLUE, x="items"),
            curve(frame, "items", "equal popularity", GREY, x="items").update(line_dash="dot"),
        ],
        "share of the catalog",
        "share of mentions",
        x_axis=percent,
        **percent,
    )
    return figures


def demonstration_figures(
    plots: Mapping[str, pd.DataFrame], metrics: Mapping[str, Any], headline: str
) -> dict[str, Markup]:
    """Return the plots of the demonstrations: the score after each step, the lists' popularity, and Adjust's loss."""
    traces = []
    groups = {"held_out": "held out", "validation": "validation"}
    for (split, name), marker in zip(groups.items(), BARS, strict=False):
        if split in metrics:
            values = [metrics[split][step][headline] for step in DEMONSTRATION_STEPS]
            bar = go.Bar(
                x=list(DEMONSTRATION_STEPS.values()),
                y=values,
                name=f"{name}, {metrics[split]['prompts']:,} prompts",
                text=[f"{value:.2f}" for value in values],
                textposition="outside",
                cliponaxis=False,
                marker=marker,
            )
            traces.append(bar)
    names = {"ground_truth": "ground truth", "collaborative": "before Adjust", "adjust": "after Adjust"}
    popularity = lines(plots["popularity"], names, x="bucket")
    figures = {
        "demonstrations": figure("demonstrations", traces, "", metric_label(headline)),
        "popularity": figure("popularity", popularity, "twentieth of the catalog", "share", **FROM_ZERO),
    }
    if not (adjust := plots["adjust"]).empty:
        losses = [curve(adjust[1:], "loss", "fitted", *LINES[0], x="epoch")]
        losses.append(curve(adjust, "held_out_loss", "held out", *LINES[1], x="epoch"))
        figures["adjust"] = figure("adjust", losses, "epoch", "loss")
    return figures


def _step_figure(frame: pd.DataFrame, column: str, name: str, title: str) -> Markup:
    """Return a plot of a column by step, with a centred running mean over a tenth of the steps."""
    traces = [curve(frame, column, "each step", PALE)]
    if len(frame) >= 20:
        traces.append(curve(frame.assign(**{column: smoothed(frame[column])}), column, "running mean", BLUE))
    return figure(name, traces, "step", title)


def _chosen(frame: pd.DataFrame, column: str, chosen: int) -> list[go.Scatter]:
    """Return a ring around the chosen checkpoint's point; an empty list if it was not validated."""
    row = frame[frame["step"] == chosen]
    ring = curve(row, column, f"chosen: step {chosen:,}", INK)
    return [] if row.empty else [ring.update(mode="markers", marker=_RING, hoverinfo="skip")]


def _level(frame: pd.DataFrame, column: str, name: str) -> list[go.Scatter]:
    """Return a horizontal line at the value of step 0, the starting model; an empty list without step 0."""
    start = frame.loc[frame["step"] == 0, column].tolist()
    ends = pd.DataFrame({"step": [frame["step"].min(), frame["step"].max()], column: start * 2}) if start else None
    return [] if ends is None else [curve(ends, column, name, GREY).update(line_dash="longdash", line_width=1.5)]


def training_figures(
    plots: Mapping[str, pd.DataFrame], cutoffs: Sequence[int], chosen: int, start: str
) -> dict[str, Markup]:
    """Return the plots of the trainings: loss and reward by step, and the scores of the validated checkpoints.

    A ring marks the chosen checkpoint at the largest cutoff. A line marks the value of step 0, the model `start`.
    """
    figures, reward, frame = {}, plots["reward"], plots["validation"]
    if not plots["sft"].empty:
        losses = {"loss": ("training", BLUE, None), "validation_loss": ("validation", VERMILLION, "square")}
        traces = [curve(plots["sft"].dropna(subset=name), name, *style) for name, style in losses.items()]
        figures["sft"] = figure("sft", traces, "step", "loss")
    if not reward.empty:
        figures["reward"] = _step_figure(reward, "hits", "reward", "hits per list")
        if reward["entropy"].notna().any():
            figures["entropy"] = _step_figure(reward, "entropy", "entropy", "entropy, nats")
    if frame.empty:
        return figures
    for metric, title in (("ndcg", "NDCG"), ("recall", "Recall")):
        columns = [f"{metric}_at_{k}" for k in sorted(cutoffs, reverse=True)]
        traces = lines(frame, {column: metric_label(column) for column in columns})
        traces += _level(frame, columns[0], f"{start}, {metric_label(columns[0])}")
        traces += _chosen(frame, columns[0], chosen)
        figures[f"validation_{metric}"] = figure(f"validation_{metric}", traces, "step", title)
    traces = lines(frame, {"in_catalog": "in catalog", "format": "exact format"})
    traces += _chosen(frame, "in_catalog", chosen)
    figures["validation_lists"] = figure("validation_lists", traces, "step", "share", tickformat=".0%", **FROM_ZERO)
    return figures


def _places(labels: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis with labels at positions 0, 1, …, from top to bottom."""
    ends = [len(labels) - 0.5, -0.5]
    return {"tickvals": list(range(len(labels))), "ticktext": list(labels), "range": ends, "ticklabelstandoff": 8}


def system_figures(
    evaluation: Mapping[str, Any], ranks: Mapping[str, pd.DataFrame], systems: Mapping[str, str], metric: str
) -> dict[str, Markup]:
    """Return the plots of the test split: hits by rank (`ranks`: see `rank_intervals`), and scores by slice."""
    figures = {"hits": _hits_figure({systems[key]: frame for key, frame in ranks.items()})}
    for kind, slices in evaluation.get("slices", {}).items():
        if len(slices) == 1:
            continue
        labels = [f"{name.replace('_', ' ')}<br>n = {part['n_rows']:,}" for name, part in slices.items()]
        traces = []
        for place, key in enumerate(ranks):
            scores = pd.DataFrame([part[key][metric] for part in slices.values()])
            above = [row + 0.24 * (place - (len(ranks) - 1) / 2) for row in range(len(labels))]
            traces.append(dots(scores, systems[key], *LINES[place], above, labels))
        name, height = f"slice_{kind}", 110 + 34 * max(2, len(labels)) + 10 * len(labels)
        figures[name] = figure(name, traces, metric_label(metric), "", height, FROM_ZERO, **_places(labels))
    return figures


def _hits_figure(ranks: Mapping[str, pd.DataFrame]) -> Markup:
    """Return a plot of the share of rows with a hit at each rank, with 95 % bands."""
    traces, places = [], []
    for (name, frame), (color, symbol) in zip(ranks.items(), LINES, strict=False):
        places = frame["rank"].tolist()
        band = go.Scatter(  # along the upper bounds, and back along the lower ones
            x=places + places[::-1],
            y=frame["high"].tolist() + frame["low"].tolist()[::-1],
            fill="toself",
            fillcolor=color,
            opacity=0.25,
            mode="none",
            hoverinfo="skip",
            showlegend=False,
        )
        traces += [band, curve(frame, "mean", name, color, symbol, x="rank")]
    axis = {"tickvals": [rank for rank in places if rank == 1 or rank % 5 == 0]}
    return figure("hits", traces, "rank", "share of rows with a hit", 340, axis, **FROM_ZERO)


def story_figures(
    plots: Mapping[str, pd.DataFrame], evaluation: Mapping[str, Any], systems: Mapping[str, str], headline: str
) -> dict[str, Markup]:
    """Return the plots at the top of the report: every system's score, and curves of the Rank-GRPO training."""
    figures = {"ladder": _ladder_figure(evaluation, systems, headline)}
    if not (frame := plots["reward_by_rank"]).empty:
        traces = []
        for (name, ends), color in zip(_RANK_GROUPS.items(), (BLUE, VERMILLION, PURPLE), strict=True):
            rows = frame[frame["rank"].between(*ends)]
            if not rows.empty:
                means = rows.groupby("step", as_index=False)["reward"].mean()
                traces.append(curve(means.assign(reward=smoothed(means["reward"])), "reward", name, color))
        figures["groups"] = figure("groups", traces, "", "reward", 165, **FROM_ZERO, nticks=4)
    small: dict[str, Any] = {"layout": {"margin": {"l": 8, "r": 8, "t": 8, "b": 8}}, **FROM_ZERO, "nticks": 4}
    if not (frame := plots["validation"]).empty:
        line = curve(frame, headline, "course", VERMILLION, "square").update(showlegend=False)
        figures["course"] = figure("course", [line], "", metric_label(headline), 125, **small)
    if not (frame := plots["reward"]).empty:
        line = curve(frame.assign(kl=smoothed(frame["kl"])), "kl", "kl", GREY).update(showlegend=False)
        figures["kl"] = figure("kl", [line], "step", "KL", 125, **small)
    return figures


def _ladder_figure(evaluation: Mapping[str, Any], systems: Mapping[str, str], metric: str) -> Markup:
    """Return a plot of each system's mean and 95 % interval, highest first."""
    keys = sorted(systems, key=lambda key: -evaluation[key][metric])
    colors = {"sft": BLUE, "rank_grpo": VERMILLION}  # as in the plots of the sections
    traces = []
    for place, key in enumerate(keys):
        color = colors.get(key.removesuffix(CONSTRAINED), GREY)
        symbol = "circle" if key.endswith(CONSTRAINED) else "circle-open"
        scores = evaluation[key]
        intervals = pd.DataFrame([{"mean": scores[metric], **scores["intervals"][metric]}])
        point = dots(intervals, systems[key], color, symbol, [place], [systems[key]])
        label = {"text": [f"{scores[metric]:.3f}"], "textposition": "top center"}
        font = {"size": 11, "color": color}
        traces.append(point.update(mode="markers+text", **label, textfont=font, showlegend=False))
    axis = {**_places([systems[key] for key in keys]), "range": [len(keys) - 0.4, -0.8], "showgrid": False}
    return figure("ladder", traces, metric_label(metric), "", 430, FROM_ZERO, **axis)
