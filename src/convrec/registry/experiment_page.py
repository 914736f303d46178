"""The result of an online experiment for readers: the rows of its table, and its page."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from convrec.evaluation.experiment_page import render_experiment
from convrec.files.atomic import write_text
from convrec.registry.experiment_result import Result
from convrec.serving.arms import BETTER, WORSE

_COLUMNS = ("side", "version", "users", "answers", "accepted items", "accepted per answer", "answers won")
_KINDS = {"ab": "A/B", "interleaving": "team-draft interleaving"}
_ESTIMATES = {
    "ab": "accepted items per answer, challenger minus champion",
    "interleaving": "share of decided answers that the challenger won",
}


def side_rows(result: Result) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the columns of the sides' table, and a row for each side; only interleaving has answers won."""
    rows = [
        (
            side.arm,
            side.version,
            f"{side.users:,}",
            f"{side.answers:,}",
            f"{side.accepted:,}",
            "-" if side.per_answer is None else f"{side.per_answer:.3f}",
            "-" if side.wins is None else f"{side.wins:,}",
        )
        for side in result.sides
    ]
    num_columns = len(_COLUMNS) - (result.experiment.kind == "ab")
    return _COLUMNS[:num_columns], [row[:num_columns] for row in rows]


def side_table(result: Result) -> str:
    """Return the sides as a Markdown table."""
    columns, rows = side_rows(result)
    lines = [columns, ("---", *("---:" for _ in columns[1:])), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page(result: Result, path: Path) -> None:
    """Write the page of a result."""
    experiment = result.experiment
    kind = _KINDS[experiment.kind]
    columns, rows = side_rows(result)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = f"Ended {experiment.ended}: {experiment.reason}." if experiment.ended else "Running."
    who = f"{kind}, for {experiment.share:.0%} of the users"
    page = render_experiment(
        title=f"Experiment: version {experiment.challenger} against champion {experiment.champion}",
        caption=f"{experiment.id}: {who}, started {experiment.started} by {experiment.by}. {state}",
        facts=_facts(result),
        words=_words(result),
        columns=[name.capitalize() for name in columns],
        rows=rows,
        looks=result.looks,
        times=result.times,
        no_difference=result.no_difference,
        estimate=_ESTIMATES[experiment.kind],
        alpha=experiment.alpha,
    )
    write_text(path, page)


def _facts(result: Result) -> list[dict[str, str]]:
    experiment, (champion, challenger) = result.experiment, result.sides
    facts = [
        {"label": "Challenger", "value": result.verdict, "note": f"alpha = {experiment.alpha:g}, looked at any time"}
    ]
    if not result.looks or not np.isfinite(result.looks[-1].mean):
        return [*facts, {"label": "Answers", "value": f"{len(result.times):,}", "note": "none of one side yet"}]
    last = result.looks[-1]
    is_bounded, form = bool(np.isfinite(last.low)), "{:+.3f}" if experiment.kind == "ab" else "{:.1%}"
    interval = f"{form.format(last.low)} to {form.format(last.high)}" if is_bounded else "no bounds yet"
    label = "Difference per answer" if experiment.kind == "ab" else "Answers won"
    return [
        *facts,
        {"label": label, "value": form.format(last.mean), "note": interval},
        {"label": "p-value", "value": f"{last.p:.3g}", "note": "always valid"},
        {"label": "Answers", "value": f"{last.answers:,}", "note": f"of {last.users:,} users"},
        {"label": "Accepted items", "value": f"{champion.accepted + challenger.accepted:,}", "note": "of both sides"},
    ]


def _words(result: Result) -> list[str]:
    experiment = result.experiment
    challenger, champion = f"Version {experiment.challenger}", f"version {experiment.champion}"
    what = "items per answer" if experiment.kind == "ab" else "of its items"
    if result.verdict == BETTER:
        return [f"{challenger} is better than {champion}: users accept more {what}."]
    if result.verdict == WORSE:
        return [f"{challenger} is worse than {champion}: users accept fewer {what}."]
    return ["Not decided: the answers so far do not show that one of the versions is better."]
