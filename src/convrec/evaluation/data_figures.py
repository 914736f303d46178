"""The plots of the data: months, lengths, ground truth and the popularity of the catalog's items."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.data.conversations import SPLITS
from convrec.evaluation.page import BARS, BLUE, GREY, LINES, curve, figure

DATA_PLOTS = ("rows_by_month", "conversation_words", "groundtruth_sizes", "catalog_popularity")
MARKS = dict(zip(SPLITS, BARS, strict=False))
FEW_MONTHS = 6  # below this, plotly would put ticks at weeks


def months_figure(frame: pd.DataFrame) -> Markup:
    """Return a bar chart of the rows of each month, stacked by split."""
    bars = [
        go.Bar(x=part["month"].tolist(), y=part["rows"].tolist(), xperiod="M1", name=name, marker=MARKS[name])
        for name in SPLITS
        if not (part := frame[frame["split"] == name]).empty
    ]
    months = pd.PeriodIndex(frame["month"], freq="M")
    few = (months.max() - months.min()).n < FEW_MONTHS
    axis = {"type": "date", "tickformat": "%b %Y", "ticklabelmode": "period", **({"dtick": "M1"} if few else {})}
    return figure("rows_by_month", bars, "", "rows", x_axis=axis, layout={"barmode": "stack"}, rangemode="tozero")


def words_figure(frame: pd.DataFrame) -> Markup:
    """Return a plot of the share of each split's prompts by number of words, in bins."""
    edges = [f"{edge:,}" for edge in frame["words"].tolist()]
    shares = pd.DataFrame({name: frame[name] / max(1, frame[name].sum()) for name in SPLITS}).assign(words=edges)
    traces = [curve(shares, name, name, *LINES[place], x="words") for place, name in enumerate(SPLITS)]
    axis = {"type": "category"}
    return figure("conversation_words", traces, "words, from", "share of prompts", x_axis=axis, rangemode="tozero")


def sizes_figure(frame: pd.DataFrame) -> Markup:
    """Return a bar chart of the share of each split's rows by number of ground-truth items."""
    sizes = frame["size"].astype(str).replace("more", f">{len(frame) - 1}").tolist()
    bars = [go.Bar(x=sizes, y=frame[name].tolist(), name=name, marker=MARKS[name]) for name in SPLITS]
    return figure("groundtruth_sizes", bars, "ground-truth items", "share of rows", x_axis={"type": "category"})


def catalog_figure(frame: pd.DataFrame) -> Markup:
    """Return a plot of the cumulative share of mentions by share of the catalog, with the line of equal popularity."""
    traces = [
        curve(frame, "mentions", "ground truth of train", BLUE, x="items"),
        curve(frame, "items", "equal popularity", GREY, x="items").update(line_dash="dot"),
    ]
    return figure(
        "catalog_popularity",
        traces,
        "share of the catalog",
        "share of mentions",
        x_axis={"tickformat": ".0%"},
        tickformat=".0%",
    )


def data_figures(plots: Mapping[str, pd.DataFrame]) -> dict[str, Markup]:
    """Return the plots of the data as HTML by name; the plot by month is absent if no row has a date."""
    figures = {} if plots["rows_by_month"].empty else {"rows_by_month": months_figure(plots["rows_by_month"])}
    figures["conversation_words"] = words_figure(plots["conversation_words"])
    figures["groundtruth_sizes"] = sizes_figure(plots["groundtruth_sizes"])
    figures["catalog_popularity"] = catalog_figure(plots["catalog_popularity"])
    return figures
