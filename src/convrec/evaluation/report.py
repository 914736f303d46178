"""The report: one HTML file that needs nothing from elsewhere. Texts of users and models are escaped."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from convrec.data.catalog import Catalog, fold
from convrec.evaluation.table import SYSTEMS
from convrec.matching import Truth, relevance
from convrec.parsing import parse_list

MODELS = ("zero_shot", "sft", "rank_grpo")  # those that compete for the bold figure
DEMONSTRATION_STEPS = {"teacher": "Teacher", "remap": "Remap", "reflect": "Reflect", "adjust": "Adjust"}
MAX_COLUMNS = 80  # of the heatmap: more would be narrower than a pixel on a phone

_BLUE, _PALE, _GREY = "#1f5fa8", "#a9c4e4", "#5a6472"
_LINES = ((_BLUE, "circle"), ("#b3541e", "square"), ("#2c7a4b", "diamond"), ("#7a3e9d", "cross"))

Status = Literal["hit", "seen", "outside", "blank", "unscored", "miss"]


class Line(NamedTuple):
    """One line of a list as it was written, and what became of it."""

    text: str
    status: Status


class Example(NamedTuple):
    """A test prompt, the accepted items of each answer to it, and the lists by system."""

    prompt_id: str
    messages: Sequence[Mapping[str, str]]
    answers: Sequence[Sequence[Truth]]
    lists: Mapping[str, Sequence[Line]]


class DataFile(NamedTuple):
    """One version of a data file; `dates` are the first and the last; they and `prompts` are None where it has none."""

    name: str
    rows: int
    prompts: int | None
    dates: tuple[str, str] | None
    md5: str


def judge_lines(
    text: str,
    answers: Sequence[Sequence[Truth]],
    seen_titles: Sequence[str],
    catalog: Catalog,
    num_ranks: int,
) -> list[Line]:
    """Return each line with its status; a line is a hit if it is one for any of the prompt's answers.

    `unscored`: it comes after `num_ranks` lines that name unseen items of the catalog, where the protocol
    `evaluation` stops to count.
    """
    entries = parse_list(text, catalog)
    seen = {fold(title) for title in seen_titles}
    rows = [relevance(text, truths, seen_titles, catalog, len(entries), "reward") for truths in answers]
    lines, num_usable = [], 0
    for rank, (entry, written) in enumerate(zip(entries, text.split("\n"), strict=False)):
        status: Status
        if entry is None:
            status = "blank"
        elif fold(entry.title) in seen:
            status = "seen"
        elif entry.index is None:
            status = "outside"
        elif num_usable >= num_ranks:
            status = "unscored"
        else:
            num_usable += 1
            status = "hit" if any(row[rank] for row in rows) else "miss"
        lines.append(Line(written.strip(), status))
    return lines


def metric_label(metric: str) -> str:
    """Return a metric's name as it is printed: `ndcg_at_5` is NDCG@5."""
    names = {"recall": "Recall@", "ndcg": "NDCG@"}
    name, _, cutoff = metric.partition("_at_")
    return f"{names[name]}{cutoff}" if cutoff else metric.replace("_", " ").capitalize()


def _figure(name: str, traces: Sequence[Any], x_title: str, y_title: str, height: int = 300, **y_axis: Any) -> Markup:
    """Return a plot as HTML. Axes are fixed, so that a finger on a plot scrolls the page."""
    axis = {"fixedrange": True, "automargin": True, "gridcolor": "#e3e7ec", "linecolor": "#8a94a3"}
    layout = {
        "template": "none",
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1b2430"},
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "xaxis": {**axis, "title": {"text": x_title}, "zeroline": False},
        "yaxis": {**axis, "title": {"text": y_title}, "zeroline": False, **y_axis},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
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


def _curve(frame: pd.DataFrame, column: str, name: str, color: str, symbol: str | None = None) -> go.Scatter:
    return go.Scatter(
        x=frame["step"].tolist(),
        y=frame[column].tolist(),
        name=name,
        mode="lines+markers" if symbol else "lines",
        line={"color": color, "width": 2},
        marker={"symbol": symbol, "size": 8} if symbol else None,
    )


def reward_figure(frame: pd.DataFrame) -> Markup:
    """Return the plot of the hits per sampled list by step, with a centred mean over a tenth of the steps."""
    window = max(1, len(frame) // 10)
    smooth = frame.assign(reward=frame["reward"].rolling(window, center=True, min_periods=1).mean())
    traces = [_curve(frame, "reward", "each step", _PALE)]
    if window > 1:
        traces.append(_curve(smooth, "reward", "running mean", _BLUE))
    return _figure("reward", traces, "step", "hits per list")


def rank_figure(frame: pd.DataFrame) -> Markup:
    """Return the heatmap rank by step of the share of sampled lists with a hit at the rank.

    Steps are averaged in equal blocks where there are more than `MAX_COLUMNS`.
    """
    grid = frame.pivot_table(index="rank", columns="step", values="reward")
    width = -(-grid.shape[1] // MAX_COLUMNS)
    means = grid.T.groupby(np.arange(grid.shape[1]) // width).mean().T
    heatmap = go.Heatmap(
        x=grid.columns[::width].tolist(),
        y=grid.index.tolist(),
        z=means.round(4).to_numpy().tolist(),
        zmin=0,
        zmax=float(means.to_numpy().max()) or 1.0,
        colorscale="Viridis",
        colorbar={"thickness": 12, "outlinewidth": 0, "tickformat": ".0%"},
        hovertemplate="step %{x}, rank %{y}: %{z:.1%}<extra></extra>",
    )
    ticks = [rank for rank in grid.index if rank == 1 or rank % 5 == 0]
    return _figure("ranks", [heatmap], "step", "rank", 420, autorange="reversed", tickvals=ticks, showgrid=False)


def validation_figure(frame: pd.DataFrame, cutoffs: Sequence[int]) -> Markup:
    """Return the plot of the validation NDCG@K of the checkpoints; step 0 is the SFT model."""
    traces = [
        _curve(frame, f"ndcg_at_{k}", f"NDCG@{k}", *_LINES[position % len(_LINES)])
        for position, k in enumerate(cutoffs)
    ]
    return _figure("validation", traces, "step", "NDCG")


def demonstration_figure(metrics: Mapping[str, Mapping[str, float]], headline: str) -> Markup:
    """Return the bars of the headline metric of the demonstrations after each step."""
    steps = [step for step in DEMONSTRATION_STEPS if step in metrics]
    values = [metrics[step][headline] for step in steps]
    bars = go.Bar(
        x=[DEMONSTRATION_STEPS[step] for step in steps],
        y=values,
        text=[f"{value:.4f}" for value in values],
        textposition="outside",
        cliponaxis=False,
        marker={"color": _BLUE},
        width=0.6,
    )
    return _figure("demonstrations", [bars], "", metric_label(headline))


def make_figures(
    plots: Mapping[str, pd.DataFrame],
    demonstrations: Mapping[str, Mapping[str, float]],
    cutoffs: Sequence[int],
    headline: str,
) -> dict[str, Markup]:
    """Return the plots as HTML by name: a plot without points, of a run shorter than its logging, is absent."""
    figures = {"demonstrations": demonstration_figure(demonstrations, headline)}
    if not plots["sft"].empty:
        figures["sft"] = _figure("sft", [_curve(plots["sft"], "loss", "loss", _BLUE)], "step", "loss")
    if not plots["reward"].empty:
        figures["reward"] = reward_figure(plots["reward"])
    if not plots["reward_by_rank"].empty:
        figures["ranks"] = rank_figure(plots["reward_by_rank"])
    if not plots["validation"].empty:
        figures["validation"] = validation_figure(plots["validation"], cutoffs)
    return figures


def best_models(evaluation: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, float]:
    """Return the highest value that any of the models reaches, by metric."""
    present = [evaluation[name] for name in MODELS if name in evaluation]
    return {metric: max((scores[metric] for scores in present), default=np.inf) for metric in metrics}


def render_report(
    *,
    profile: str,
    seed: int,
    simulated: bool,
    cutoffs: Sequence[int],
    bootstrap_samples: int,
    catalog_size: int,
    files_of_data: Sequence[DataFile],
    left_out: Mapping[str, int],
    left_out_share: float,
    demonstrations: Mapping[str, Any],
    training: Mapping[str, Mapping[str, Any]],
    evaluation: Mapping[str, Any],
    plots: Mapping[str, pd.DataFrame],
    examples: Sequence[Example],
    parameters: Mapping[str, Any],
    code: Mapping[str, str],
) -> str:
    """Return the report as one HTML document.

    `evaluation`, `demonstrations` and `training` (by stage) are the metrics files of the stages, `plots` their
    curves by name, `left_out` the number of rows by reason, `parameters` flat, `code` the state of git or nothing.
    """
    headline = f"ndcg_at_{max(cutoffs)}"
    metrics = [f"{name}_at_{k}" for name in ("recall", "ndcg") for k in cutoffs]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["metric"] = metric_label
    source = files("convrec.evaluation").joinpath("report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        profile=profile,
        seed=seed,
        simulated=simulated,
        bootstrap_samples=bootstrap_samples,
        catalog_size=catalog_size,
        data_files=files_of_data,
        left_out=left_out,
        left_out_share=left_out_share,
        demonstrations=demonstrations,
        training=training,
        evaluation=evaluation,
        systems={key: name for key, name in SYSTEMS.items() if key in evaluation},
        system_names=SYSTEMS,
        models=MODELS,
        metrics=metrics,
        headline=headline,
        best=best_models(evaluation, [*metrics, "in_catalog"]),
        gains=evaluation.get(f"paired_{headline}", {}),
        figures=make_figures(plots, demonstrations["validation"], cutoffs, headline),
        examples=examples,
        parameters=parameters,
        code=code,
        plotly=Markup(get_plotlyjs()),
    )
