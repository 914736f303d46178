"""The plots of the report, as HTML by name; a plot without points is absent."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from convrec.evaluation.metrics import metric_label
from convrec.evaluation.page import BLUE, GREY, LINES, PALE, PURPLE, VERMILLION, curve, dots, errors, figure, lines
from convrec.evaluation.systems import is_ablation

PLOTS = ("popularity", "sft", "reward", "reward_by_rank", "validation")  # the curves of the stages that are drawn
DEMONSTRATION_STEPS = {
    "teacher": "Teacher",
    "remap": "Remap",
    "reflect": "Reflect",
    "collaborative": "Collaborative",
    "adjust": "Adjust",
}
FROM_ZERO: dict[str, Any] = {"rangemode": "tozero"}
_RANK_GROUPS = {"ranks 1–5": (1, 5), "ranks 6–10": (6, 10), "ranks 11–20": (11, 20)}
_OF_STEPS = {"reward": ("hits", "hits per list"), "kl": ("kl", "KL, nats"), "entropy": ("entropy", "entropy, nats")}


def smoothed(values: pd.Series) -> pd.Series:
    """Return the centred running mean over a tenth of the points."""
    return values.rolling(max(1, len(values) // 10), center=True, min_periods=1).mean()


def demonstration_figures(
    plots: Mapping[str, pd.DataFrame], metrics: Mapping[str, Any], headline: str
) -> dict[str, Markup]:
    """Return the plots of the demonstrations: the score after each step, and the lists' popularity."""
    steps, labels = [], list(DEMONSTRATION_STEPS.values())
    for place, split in enumerate(split for split in ("held_out", "validation") if split in metrics):
        scores = pd.DataFrame(metrics[split][step]["intervals"][headline] for step in DEMONSTRATION_STEPS)
        scores["mean"] = [metrics[split][step][headline] for step in DEMONSTRATION_STEPS]
        name, rows = f"{split.replace('_', ' ')}, {metrics[split]['prompts']:,} prompts", range(len(labels))
        steps.append(dots(scores, name, *LINES[place], [row + 0.24 * (place - 0.5) for row in rows], labels))
    names = {"ground_truth": "ground truth", "collaborative": "before Adjust", "adjust": "after Adjust"}
    popularity = lines(plots["popularity"], names, x="bucket")
    return {
        "demonstrations": figure(
            "demonstrations", steps, metric_label(headline), "", 320, FROM_ZERO, left=104, **_places(labels)
        ),
        "popularity": figure("popularity", popularity, "twentieth of the catalog", "share", **FROM_ZERO),
    }


def training_figures(plots: Mapping[str, pd.DataFrame], cutoffs: Sequence[int], chosen: int) -> dict[str, Markup]:
    """Return the plots of the trainings: losses, figures of each step, and the scores of the validated checkpoints.

    A vertical line marks the chosen checkpoint. All plots of Rank-GRPO have the same steps on their axes.
    """
    figures, reward, by_rank, frame = {}, plots["reward"], plots["reward_by_rank"], plots["validation"]
    steps = _from_zero(max((part["step"].max() for part in (reward, by_rank, frame) if not part.empty), default=1))
    for column, name, title in (("loss", "sft", "loss"), ("validation_ndcg", "sft_validation", "NDCG")):
        if column in plots["sft"] and plots["sft"][column].notna().any():
            traces = [curve(plots["sft"].dropna(subset=column), column, title, BLUE)]
            figures[name] = figure(name, traces, "step", title, x_axis=_from_zero(plots["sft"]["step"].max()))
    for name, (column, title) in _OF_STEPS.items():
        if column in reward and reward[column].notna().any():
            mean = reward.assign(**{column: smoothed(reward[column])})
            traces = [curve(reward, column, "each step", PALE), curve(mean, column, "running mean", BLUE)]
            figures[name] = figure(name, traces, "step", title, x_axis=steps)
    if not by_rank.empty:
        traces = []
        for (name, ends), color in zip(_RANK_GROUPS.items(), (BLUE, VERMILLION, PURPLE), strict=True):
            means = by_rank[by_rank["rank"].between(*ends)].groupby("step", as_index=False)["reward"].mean()
            if not means.empty:
                traces.append(curve(means.assign(reward=smoothed(means["reward"])), "reward", name, color))
        figures["groups"] = figure("groups", traces, "step", "reward", x_axis=steps, **FROM_ZERO)
    if frame.empty:
        return figures
    mark = {"type": "line", "x0": chosen, "x1": chosen, "yref": "paper", "y0": 0, "y1": 1, "line": {"color": GREY}}
    for metric, title in (("ndcg", "NDCG"), ("recall", "Recall")):
        columns = [f"{metric}_at_{k}" for k in sorted(cutoffs, reverse=True)]
        traces, name = lines(frame, {column: metric_label(column) for column in columns}), f"validation_{metric}"
        figures[name] = figure(name, traces, "step", title, x_axis=steps, layout={"shapes": [mark]})
    traces, name = lines(frame, {"in_catalog": "in catalog", "format": "exact format"}), "validation_lists"
    figures[name] = figure(name, traces, "step", "share", x_axis=steps, tickformat=".0%", **FROM_ZERO)
    return figures


def _from_zero(last: float) -> dict[str, Any]:
    """Return a horizontal axis from 0 to `last`, with room for the markers at both ends."""
    return {"range": [-0.02 * last, 1.02 * last]}


def _places(labels: Sequence[str]) -> dict[str, Any]:
    """Return a vertical axis with labels at positions 0, 1, …, from top to bottom."""
    ends = [len(labels) - 0.4, -0.8]
    return {"tickvals": list(range(len(labels))), "ticktext": list(labels), "range": ends}


def system_figures(
    evaluation: Mapping[str, Any], ranks: Mapping[str, pd.DataFrame], systems: Mapping[str, str], metric: str
) -> dict[str, Markup]:
    """Return the plots of the test split, with 95 % intervals: the systems, hits by rank, and scores by slice.

    `ranks` holds the frames of `rank_intervals` by system.
    """
    hits = [
        curve(frame, "mean", systems[key], *LINES[place], x="rank").update(error_y=errors(frame, LINES[place][0]))
        for place, (key, frame) in enumerate(ranks.items())
    ]
    figures = {
        "ladder": _ladder_figure(evaluation, systems, metric),
        "hits": figure("hits", hits, "rank", "share of rows with a hit", 340, **FROM_ZERO),
    }
    shown = {kind: slices for kind, slices in evaluation.get("slices", {}).items() if len(slices) > 1}
    scores = [part[key][metric] for slices in shown.values() for part in slices.values() for key in ranks]
    one_axis = _from_zero(max((score["high"] or score["mean"] for score in scores), default=1))
    for kind, slices in shown.items():
        labels = [f"{name.replace('_', ' ')}<br>n = {part['n_rows']:,}" for name, part in slices.items()]
        traces = []
        for place, key in enumerate(ranks):
            scores = pd.DataFrame([part[key][metric] for part in slices.values()])
            above = [row + 0.24 * (place - (len(ranks) - 1) / 2) for row in range(len(labels))]
            traces.append(dots(scores, systems[key], *LINES[place], above, labels))
        name, height = f"slice_{kind}", 110 + 34 * max(2, len(labels)) + 10 * len(labels)
        figures[name] = figure(name, traces, metric_label(metric), "", height, one_axis, left=104, **_places(labels))
    return figures


def _ladder_figure(evaluation: Mapping[str, Any], systems: Mapping[str, str], metric: str) -> Markup:
    """Return a plot of each system's mean, also in its label, and 95 % interval, highest first, without ablations."""
    keys = sorted((key for key in systems if not is_ablation(key)), key=lambda key: -evaluation[key][metric])
    colors = {"sft": BLUE, "rank_grpo": VERMILLION}  # as in the plots of the sections
    traces = []
    for place, key in enumerate(keys):
        color, symbol = colors.get(key, GREY), "circle" if key in colors else "circle-open"
        scores = evaluation[key]
        intervals = pd.DataFrame([{"mean": scores[metric], **scores["intervals"][metric]}])
        point = dots(intervals, systems[key], color, symbol, [place], [systems[key]])
        traces.append(point.update(showlegend=False))
    names = [f"{systems[key]}  <b>{evaluation[key][metric]:.3f}</b>" for key in keys]
    return figure("ladder", traces, metric_label(metric), "", 430, FROM_ZERO, **_places(names), showgrid=False)
