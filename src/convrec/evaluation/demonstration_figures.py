"""The plots of the demonstrations: the lists after each step, their popularity, and Adjust's loss."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.page import BARS, LINES, curve, figure

DEMONSTRATION_STEPS = {
    "teacher": "Teacher",
    "remap": "Remap",
    "reflect": "Reflect",
    "collaborative": "Collaborative",
    "adjust": "Adjust",
}
EVIDENCE = {"popularity": "popularity", "neighbours": "neighbours", "item_knn": "item-kNN"}


def demonstration_figure(metrics: Mapping[str, Any], headline: str) -> Markup:
    """Return a bar chart of the demonstrations' headline metric after each step, for each group of prompts."""
    traces = []
    groups = {"held_out": "held out", "validation": "validation"}
    for (split, name), marker in zip(groups.items(), BARS, strict=False):
        if split not in metrics:
            continue
        values = [metrics[split][step][headline] for step in DEMONSTRATION_STEPS]
        traces.append(
            go.Bar(
                x=list(DEMONSTRATION_STEPS.values()),
                y=values,
                name=f"{name}, {metrics[split]['prompts']:,} prompts",
                text=[f"{value:.2f}" for value in values],
                textposition="outside",
                cliponaxis=False,
                marker=marker,
            )
        )
    return figure("demonstrations", traces, "", metric_label(headline))


def popularity_figure(frame: pd.DataFrame) -> Markup:
    """Return a plot of the share of lines and ground truth by bucket of the catalog, from most to least liked items."""
    names = {"ground_truth": "ground truth", "collaborative": "before Adjust", "adjust": "after Adjust"}
    traces = [
        curve(frame, column, name, *LINES[position], x="bucket")
        for position, (column, name) in enumerate(names.items())
    ]
    return figure("popularity", traces, "twentieth of the catalog", "share", rangemode="tozero")


def adjust_figure(frame: pd.DataFrame) -> Markup:
    """Return a plot of Adjust's loss by epoch, for the prompts that it is fitted to and those held out."""
    traces = [curve(frame[1:], "loss", "fitted", *LINES[0], x="epoch")]
    traces.append(curve(frame, "held_out_loss", "held out", *LINES[1], x="epoch"))
    return figure("adjust", traces, "epoch", "loss")


def demonstration_figures(
    plots: Mapping[str, pd.DataFrame], metrics: Mapping[str, Any], headline: str
) -> dict[str, Markup]:
    """Return the plots of the demonstrations as HTML by name; that of Adjust is absent if Adjust was not run."""
    figures = {
        "demonstrations": demonstration_figure(metrics, headline),
        "popularity": popularity_figure(plots["popularity"]),
    }
    return figures if plots["adjust"].empty else {**figures, "adjust": adjust_figure(plots["adjust"])}
