"""Self-contained HTML pages: templates, plots and style, with a light and a dark mode."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from convrec.evaluation.metrics import metric_label

# Okabe and Ito's palette for colour-blind readers (https://jfly.uni-koeln.de/color/). Some colours are darker, for
# contrast on white.
BLUE, VERMILLION, GREEN, PURPLE, OCHRE = "#0072b2", "#d55e00", "#008f68", "#b8568f", "#807000"
PALE, GREY, INK, GRID, AXIS = "#8fb4d6", "#5a6472", "#1b2430", "#e3e7ec", "#8a94a3"
# The replacement of each colour in dark mode.
DARK_COLORS = {
    BLUE: "#56b4e9",
    VERMILLION: "#e69f00",
    GREEN: "#1fbf92",
    PURPLE: "#e08fbf",
    OCHRE: "#f0e442",
    PALE: "#4a7396",
    GREY: "#a3adba",
    INK: "#e4e9f0",
    GRID: "#2b3441",
    AXIS: "#6c7785",
}
LINES = (
    (BLUE, "circle"),
    (VERMILLION, "square"),
    (GREEN, "diamond"),
    (PURPLE, "cross"),
    (OCHRE, "triangle-up"),
    (GREY, "x"),
)
DASHES = dict(
    zip((symbol for _, symbol in LINES), ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot"), strict=True)
)


def render_page(template: str, folder: str = "evaluation", **values: Any) -> str:
    """Return a page from a template of a folder of convrec, with plotly.js embedded; values are escaped.

    The template may include files of `evaluation`.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader("convrec", one) for one in (folder, "evaluation")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["metric"] = metric_label
    environment.filters["unnumbered"] = lambda line: re.sub(r"^\d+[.)]\s+", "", line)  # the page numbers the lines
    page = environment.get_template(template)
    return page.render(**values, plotly=Markup(get_plotlyjs()), dark_colors=DARK_COLORS)


def figure(
    name: str,
    traces: Sequence[Any],
    x_title: str,
    y_title: str,
    height: int = 300,
    x_axis: Mapping[str, Any] = MappingProxyType({}),
    layout: Mapping[str, Any] = MappingProxyType({}),
    left: int = 84,
    **y_axis: Any,
) -> Markup:
    """Return a plot as HTML; the page's script draws it.

    Axes are fixed, so that touching a plot scrolls the page. `left` is the room for the labels of the vertical axis, in
    pixels; the axes of plots with the same room stand below each other.
    """
    axis = {"fixedrange": True, "automargin": True, "gridcolor": GRID, "linecolor": AXIS, "zeroline": False}
    axis["ticklabelstandoff"] = 6
    clear = "rgba(0,0,0,0)"
    whole = {
        "template": "none",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "margin": {"l": left, "r": 8, "t": 28, "b": 8},
        "xaxis": {**axis, "title": {"text": x_title}, **x_axis},
        "yaxis": {**axis, "title": {"text": y_title, "standoff": 12}, **y_axis},
        "legend": {"orientation": "h", "traceorder": "normal", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "dragmode": False,
        "autosize": True,
        **layout,
    }
    plot = Markup(go.Figure(list(traces), whole).to_json())  # plotly escapes <, > and /
    box = f'<div id="plot-{name}" class="plot" style="height:{height}px"></div>'
    return Markup(box) + Markup('<script type="application/json">') + plot + Markup("</script>")


def curve(
    frame: pd.DataFrame, column: str, name: str, color: str, symbol: str | None = None, x: str = "step"
) -> go.Scatter:
    """Return a line of `column` over `x`; with a symbol, it has markers and the dash of that symbol."""
    return go.Scatter(
        x=frame[x].tolist(),
        y=frame[column].tolist(),
        name=name,
        mode="lines+markers" if symbol else "lines",
        line={"color": color, "width": 2, "dash": DASHES[symbol] if symbol else "solid"},
        marker={"symbol": symbol, "size": 8} if symbol else None,
    )


def lines(frame: pd.DataFrame, names: Mapping[str, str], x: str = "step") -> list[go.Scatter]:
    """Return a line of each column in `names` over `x`, with the colours of `LINES` in turn."""
    return [curve(frame, column, name, *LINES[i % len(LINES)], x=x) for i, (column, name) in enumerate(names.items())]


def errors(frame: pd.DataFrame, color: str) -> dict[str, Any]:
    """Return the error bars of `low` and `high` around `mean`; wider than a marker, so that short ones stay visible."""
    low, high = (frame[end].astype(float) for end in ("low", "high"))  # None without an interval
    ends = {"array": (high - frame["mean"]).tolist(), "arrayminus": (frame["mean"] - low).tolist()}
    return {"type": "data", "symmetric": False, **ends, "color": color, "thickness": 1.5, "width": 6}


def dots(
    frame: pd.DataFrame, name: str, color: str, symbol: str, places: Sequence[float], labels: Sequence[str]
) -> go.Scatter:
    """Return points with their intervals (columns `mean`, `low`, `high`) at `places` of the vertical axis."""
    return go.Scatter(
        x=frame["mean"].tolist(),
        y=list(places),
        name=name,
        mode="markers",
        cliponaxis=False,
        marker={"color": color, "symbol": symbol, "size": 7},
        error_x=errors(frame, color),
        customdata=list(zip(labels, frame["low"].tolist(), frame["high"].tolist(), strict=True)),
        hovertemplate="%{customdata[0]}<br>%{x:.4f} (%{customdata[1]:.4f} to %{customdata[2]:.4f})",
    )
