"""HTML pages that need nothing from elsewhere: their template, their plots, their style."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

BLUE, PALE, GREY = "#1f5fa8", "#a9c4e4", "#5a6472"
LINES = ((BLUE, "circle"), ("#b3541e", "square"), ("#2c7a4b", "diamond"), ("#7a3e9d", "cross"))


def render_page(template: str, **values: Any) -> str:
    """Return a page from a template of this folder, with plotly inside it; values are escaped."""
    environment = Environment(
        loader=PackageLoader("convrec", "evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
    )
    environment.filters["metric"] = metric_label
    return environment.get_template(template).render(**values, plotly=Markup(get_plotlyjs()))


def metric_label(metric: str) -> str:
    """Return a metric's name as it is printed: `ndcg_at_5` is NDCG@5."""
    names = {"recall": "Recall@", "ndcg": "NDCG@"}
    name, _, cutoff = metric.partition("_at_")
    return f"{names[name]}{cutoff}" if cutoff else metric.replace("_", " ").capitalize()


def figure(
    name: str,
    traces: Sequence[Any],
    x_title: str,
    y_title: str,
    height: int = 300,
    x_axis: Mapping[str, Any] = MappingProxyType({}),
    barmode: str = "group",
    **y_axis: Any,
) -> Markup:
    """Return a plot as HTML. Axes are fixed, so that a finger on a plot scrolls the page."""
    axis = {"fixedrange": True, "automargin": True, "gridcolor": "#e3e7ec", "linecolor": "#8a94a3"}
    layout = {
        "template": "none",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1b2430"},
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "xaxis": {**axis, "title": {"text": x_title}, "zeroline": False, **x_axis},
        "yaxis": {**axis, "title": {"text": y_title}, "zeroline": False, **y_axis},
        "legend": {"orientation": "h", "traceorder": "normal", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "barmode": barmode,
        "dragmode": False,
        "autosize": True,
    }
    html = go.Figure(list(traces), layout).to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=f"plot-{name}",  # a random one would change the file's hash with every run
        default_height=f"{height}px",
        config={"responsive": True, "displayModeBar": False},
    )
    return Markup(html)


def curve(
    frame: pd.DataFrame, column: str, name: str, color: str, symbol: str | None = None, x: str = "step"
) -> go.Scatter:
    return go.Scatter(
        x=frame[x].tolist(),
        y=frame[column].tolist(),
        name=name,
        mode="lines+markers" if symbol else "lines",
        line={"color": color, "width": 2},
        marker={"symbol": symbol, "size": 8} if symbol else None,
    )
