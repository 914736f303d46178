"""The results table, for the terminal and as Markdown."""

from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from convrec.errors import InputError
from convrec.evaluation.headline import findings
from convrec.evaluation.systems import settings_words, system_names, system_pair
from convrec.files.results import read_json
from convrec.paths import Paths

MAX_CUTOFFS = 3  # only the largest cutoffs are shown, so that the table fits 80 columns


class _Results(NamedTuple):
    """The contents of the results table."""

    title: str
    systems: dict[str, str]  # names by key
    headings: dict[str, str]  # column headings by metric
    widest: int  # the largest cutoff
    metrics: dict[str, Any]
    notes: list[str]  # lines about baselines and paired differences, with headings


def read_evaluation(paths: Paths) -> dict[str, Any]:
    """Return the metrics of the stage `evaluate`.

    Raises `InputError` before the first evaluation, and if the file does not have the stage's format.
    """
    path = paths.results("evaluate")
    if not path.is_file():
        raise InputError(f"{path}: no evaluation yet; run `dvc repro` first")
    metrics = read_json(path)
    try:
        found = _of(metrics)
        for scores in (metrics[system] for system in found.systems):
            for name in found.headings:
                float(scores[name]), _interval(scores, name, found.widest)
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: unexpected format ({type(error).__name__}: {error}); run `dvc repro --force evaluate`"
        ) from None
    return metrics


def _results(paths: Paths) -> _Results:
    return _of(read_evaluation(paths))


def _of(metrics: dict[str, Any]) -> _Results:
    systems = system_names(metrics)
    first = next(iter(systems))
    cutoffs = sorted(int(name.rsplit("_", 1)[1]) for name in metrics[first] if name.startswith("ndcg_at_"))
    shown = [f"{metric}_at_{k}" for metric in ("recall", "ndcg") for k in cutoffs[-MAX_CUTOFFS:]] + ["in_catalog"]
    headings = {
        name: name.replace("recall_at_", "R@").replace("ndcg_at_", "N@").replace("in_catalog", "in cat.")
        for name in shown
    }
    lines = _baseline_lines(metrics, systems, headings)
    for key, gains in metrics.items():
        if key.startswith("paired_"):
            label = key.removeprefix("paired_").replace("ndcg_at_", "NDCG@")
            lines.append(f"Paired differences in {label}, with 95 % intervals, over {metrics['n_rows']} rows:")
            for name, gain in gains.items():
                one, other = (systems[system] for system in system_pair(name))
                spread = f"[{gain['low']:+.4f}, {gain['high']:+.4f}]"
                lines.append(f"  {one} over {other}: {gain['mean']:+.4f} {spread} p = {gain['p']:.4f}")
    title = f"Test split: {metrics['n_rows']} rows, {metrics['n_prompts']} prompts"
    return _Results(title, systems, headings, cutoffs[-1], metrics, lines)


def _baseline_lines(metrics: dict[str, Any], systems: dict[str, str], headings: dict[str, str]) -> list[str]:
    """Return lines with the baselines' scores on the validation split and their chosen hyper-parameters."""
    lines = []
    for key, baseline in metrics.get("baselines", {}).items():
        (score,) = (value for name, value in baseline.items() if name.startswith("validation_"))
        words = settings_words(baseline["settings"])
        best = ", the best on validation" if key == metrics["best_baseline"] else ""
        lines.append(f"  {systems[key]}: {score:.4f}{best}{f' ({words})' if words else ''}")
    metric = list(headings)[-2].replace("ndcg_at_", "NDCG@")
    return [f"Baselines, {metric} on the validation split, which sets their parameters:", *lines] if lines else []


def _interval(scores: dict[str, Any], name: str, widest: int) -> str:
    """Return the interval of a metric at the largest cutoff, or an empty text for other metrics."""
    interval = scores["intervals"].get(name) if name.endswith(f"_at_{widest}") else None
    return f"{interval['low']:.3f}-{interval['high']:.3f}".replace("0.", ".") if interval else ""


def print_results(paths: Paths) -> None:
    """Print one row for each system: Recall@K, NDCG@K and the in-catalog share on the test split.

    Scores at the largest cutoff have 95 % intervals below them. Raises `InputError` before the first evaluation.
    """
    found = _results(paths)
    table = Table(title=found.title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("system", no_wrap=True)
    for heading in found.headings.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for system, label in found.systems.items():
        scores = found.metrics[system]
        cells = (f"{scores[name]:.4f}\n{_interval(scores, name, found.widest)}".rstrip() for name in found.headings)
        table.add_row(label.replace(", ", ",\n"), *cells)
    console = Console(highlight=False)
    console.print(table)
    for line in found.notes:
        console.print(line, soft_wrap=True, markup=False)


def print_summary(paths: Paths) -> None:
    """Print the main findings in words, and one row for each system.

    A row has NDCG and recall at the largest cutoff, and the in-catalog share. Raises `InputError` before the first
    evaluation.
    """
    found = _results(paths)
    shown = {f"ndcg_at_{found.widest}": f"NDCG@{found.widest}", f"recall_at_{found.widest}": f"Recall@{found.widest}"}
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("system", no_wrap=True)
    for heading in (*shown.values(), "in catalog"):
        table.add_column(heading, justify="right", no_wrap=True)
    for system, label in found.systems.items():
        scores = found.metrics[system]
        cells = []
        for name in shown:
            interval = scores["intervals"][name]
            cells.append(f"{scores[name]:.3f} ± {(interval['high'] - interval['low']) / 2:.3f}")
        table.add_row(label, *cells, f"{scores['in_catalog']:.3f}")
    console = Console(highlight=False)
    words = findings(found.metrics, found.systems, f"ndcg_at_{found.widest}")
    console.print("", *words, sep="\n", markup=False, soft_wrap=True)
    console.print(table)


def results_markdown(paths: Paths) -> str:
    """Return the table of `print_results` as Markdown. Raises `InputError` before the first evaluation."""
    found = _results(paths)
    rows = [
        ["system", *found.headings.values()],
        ["---", *("---:" for _ in found.headings)],
    ]
    for system, label in found.systems.items():
        scores = found.metrics[system]
        cells = (f"{scores[name]:.4f} {_interval(scores, name, found.widest)}".rstrip() for name in found.headings)
        rows.append([label, *cells])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    notes = "\n".join(f"- {line.strip()}" if line.startswith(" ") else f"\n{line}\n" for line in found.notes)
    return f"{found.title}\n\n{table}\n{notes}\n"
