"""The report: one HTML file that needs nothing from elsewhere. Texts of users and models are escaped."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from convrec.data.catalog import Catalog
from convrec.data.titles import fold
from convrec.evaluation.data_figures import data_figures
from convrec.evaluation.page import BLUE, LINES, PALE, curve, figure, metric_label, render_page
from convrec.evaluation.table import SYSTEMS
from convrec.matching import Truth, relevance
from convrec.parsing import parse_list

MODELS = ("zero_shot", "sft", "rank_grpo")  # those that compete for the bold figure
DEMONSTRATION_STEPS = {"teacher": "Teacher", "remap": "Remap", "reflect": "Reflect", "adjust": "Adjust"}
MAX_COLUMNS = 80  # of the heatmap: more would be narrower than a pixel on a phone

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
    seen, seen_items = {fold(title) for title in seen_titles}, catalog.indices_of_titles(seen_titles)
    rows = [relevance(text, truths, seen_titles, catalog, len(entries), "reward") for truths in answers]
    lines, num_usable = [], 0
    for rank, (entry, written) in enumerate(zip(entries, text.split("\n"), strict=False)):
        status: Status
        if entry is None:
            status = "blank"
        elif fold(entry.title) in seen or entry.index in seen_items:
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


def reward_figure(frame: pd.DataFrame) -> Markup:
    """Return the plot of the hits per sampled list by step, with a centred mean over a tenth of the steps."""
    window = max(1, len(frame) // 10)
    smooth = frame.assign(hits=frame["hits"].rolling(window, center=True, min_periods=1).mean())
    traces = [curve(frame, "hits", "each step", PALE)]
    if window > 1:
        traces.append(curve(smooth, "hits", "running mean", BLUE))
    return figure("reward", traces, "step", "hits per list")


def rank_figure(frame: pd.DataFrame) -> Markup:
    """Return the heatmap rank by step of the mean reward at the rank.

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
        colorbar={"thickness": 12, "outlinewidth": 0, "tickformat": ".2f"},
        hovertemplate="step %{x}, rank %{y}: %{z:.3f}<extra></extra>",
    )
    ticks = [rank for rank in grid.index if rank == 1 or rank % 5 == 0]
    return figure("ranks", [heatmap], "step", "rank", 420, autorange="reversed", tickvals=ticks, showgrid=False)


def validation_figure(frame: pd.DataFrame, cutoffs: Sequence[int]) -> Markup:
    """Return the plot of the validation NDCG@K of the checkpoints; step 0 is the SFT model."""
    traces = [
        curve(frame, f"ndcg_at_{k}", f"NDCG@{k}", *LINES[position % len(LINES)]) for position, k in enumerate(cutoffs)
    ]
    return figure("validation", traces, "step", "NDCG")


def demonstration_figure(metrics: Mapping[str, Any], headline: str) -> Markup:
    """Return the bars of the headline metric of the demonstrations after each step, for each group of prompts."""
    traces = []
    for (split, name), color in zip(
        {"held_out": "held out", "validation": "validation"}.items(), (BLUE, PALE), strict=True
    ):
        if split not in metrics:
            continue
        values = [metrics[split][step][headline] for step in DEMONSTRATION_STEPS]
        traces.append(
            go.Bar(
                x=list(DEMONSTRATION_STEPS.values()),
                y=values,
                name=name,
                text=[f"{value:.3f}" for value in values],
                textposition="outside",
                cliponaxis=False,
                marker={"color": color},
            )
        )
    return figure("demonstrations", traces, "", metric_label(headline))


def popularity_figure(frame: pd.DataFrame) -> Markup:
    """Return the share of lists and ground truth by bucket of the catalog, from the most to the least liked items."""
    names = {"ground_truth": "ground truth", "reflect": "before Adjust", "adjust": "after Adjust"}
    traces = [
        curve(frame, column, name, *LINES[position], x="bucket")
        for position, (column, name) in enumerate(names.items())
    ]
    return figure("popularity", traces, "twentieth of the catalog", "share", rangemode="tozero")


def adjust_figure(frame: pd.DataFrame) -> Markup:
    """Return the plot of Adjust's loss by epoch, on the prompts that it is fitted on and on those held out."""
    traces = [curve(frame[1:], "loss", "fitted", *LINES[0], x="epoch")]
    traces.append(curve(frame, "held_out_loss", "held out", *LINES[1], x="epoch"))
    return figure("adjust", traces, "epoch", "loss")


def make_figures(
    plots: Mapping[str, pd.DataFrame],
    demonstrations: Mapping[str, Any],
    cutoffs: Sequence[int],
    headline: str,
) -> dict[str, Markup]:
    """Return the plots as HTML by name: a plot without points, of a run shorter than its logging, is absent."""
    figures = data_figures(plots)
    figures["demonstrations"] = demonstration_figure(demonstrations, headline)
    figures["popularity"] = popularity_figure(plots["popularity"])
    if not plots["adjust"].empty:
        figures["adjust"] = adjust_figure(plots["adjust"])
    if not plots["sft"].empty:
        figures["sft"] = figure("sft", [curve(plots["sft"], "loss", "loss", BLUE)], "step", "loss")
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
    quarantined: Sequence[tuple[str, str, int]],
    quarantined_share: Mapping[str, float],
    problems: Mapping[str, int],
    statistics: Mapping[str, Any],
    demonstrations: Mapping[str, Any],
    training: Mapping[str, Mapping[str, Any]],
    evaluation: Mapping[str, Any],
    plots: Mapping[str, pd.DataFrame],
    examples: Sequence[Example],
    demonstration_examples: Sequence[Example],
    parameters: Mapping[str, Any],
    code: Mapping[str, str],
) -> str:
    """Return the report as one HTML document.

    `evaluation`, `demonstrations` and `training` (by stage) are the metrics files of the stages, `statistics` is the
    part of that name of the stage `data`'s, `plots` are their curves by name. `quarantined` are source, reason and
    number of rows that were left out, `problems` what the checks found, `parameters` flat, `code` the state of git or
    nothing.
    """
    headline = f"ndcg_at_{max(cutoffs)}"
    metrics = [f"{name}_at_{k}" for name in ("recall", "ndcg") for k in cutoffs]
    return render_page(
        "report.html.j2",
        profile=profile,
        seed=seed,
        simulated=simulated,
        bootstrap_samples=bootstrap_samples,
        catalog_size=catalog_size,
        data_files=files_of_data,
        quarantined=quarantined,
        quarantined_share=quarantined_share,
        problems=problems,
        statistics=statistics,
        demonstrations=demonstrations,
        training=training,
        evaluation=evaluation,
        systems={key: name for key, name in SYSTEMS.items() if key in evaluation},
        system_names=SYSTEMS,
        models=MODELS,
        metrics=metrics,
        headline=headline,
        recall=f"recall_at_{max(cutoffs)}",
        step_names=DEMONSTRATION_STEPS,
        best=best_models(evaluation, [*metrics, "in_catalog"]),
        gains=evaluation.get(f"paired_{headline}", {}),
        figures=make_figures(plots, demonstrations, cutoffs, headline),
        examples=examples,
        demonstration_examples=demonstration_examples,
        parameters=parameters,
        code=code,
    )
