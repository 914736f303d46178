"""The results table, for the terminal and as Markdown."""

from typing import Any, NamedTuple

from rich.console import Console

from convrec.evaluation.headline import findings, spread
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import settings_words, system_names, system_pair
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import read_json
from convrec.project.table import TextTable

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
    headings = {name: metric_label(name, short=True) for name in shown}
    lines = _baseline_lines(metrics, systems, headings)
    for key, gains in metrics.items():
        if key.startswith("paired_"):
            label = metric_label(key.removeprefix("paired_"))
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
    metric = metric_label(list(headings)[-2])
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
    _table(found, "\n", ",\n").print()
    console = Console(highlight=False)
    for line in found.notes:
        console.print(line, soft_wrap=True, markup=False)


def _table(found: _Results, before_interval: str, comma: str) -> TextTable:
    rows = []
    for system, label in found.systems.items():
        scores = found.metrics[system]
        cells = (
            f"{scores[name]:.4f}{before_interval}{_interval(scores, name, found.widest)}".rstrip()
            for name in found.headings
        )
        rows.append([label.replace(", ", comma), *cells])
    return TextTable(["system", *found.headings.values()], rows, found.title)


def print_summary(paths: Paths) -> None:
    """Print the main findings in words, and one row for each system.

    A row has NDCG and recall at the largest cutoff, and the in-catalog share. Raises `InputError` before the first
    evaluation.
    """
    found = _results(paths)
    shown, rows = (f"ndcg_at_{found.widest}", f"recall_at_{found.widest}"), []
    for system, label in found.systems.items():
        scores = found.metrics[system]
        cells = [f"{scores[name]:.3f} {spread(scores['intervals'][name])}" for name in shown]
        rows.append([label, *cells, f"{scores['in_catalog']:.3f}"])
    words = findings(found.metrics, found.systems, f"ndcg_at_{found.widest}")
    Console(highlight=False).print("", *words, sep="\n", markup=False, soft_wrap=True)
    TextTable(["system", *map(metric_label, shown), "in catalog"], rows).print()


def results_markdown(paths: Paths) -> str:
    """Return the table of `print_results` as Markdown. Raises `InputError` before the first evaluation."""
    found = _results(paths)
    notes = "\n".join(f"- {line.strip()}" if line.startswith(" ") else f"\n{line}\n" for line in found.notes)
    return f"{found.title}\n\n{_table(found._replace(title=''), ' ', ', ').markdown()}{notes}\n"
