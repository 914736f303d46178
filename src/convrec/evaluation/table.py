"""The results table, for the terminal and as Markdown."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from convrec.evaluation.headline import findings, gain_words, spread
from convrec.evaluation.metrics import metric_label
from convrec.evaluation.systems import is_ablation, settings_words, system_names, system_pair
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import read_json
from convrec.project.table import TextTable


def read_evaluation(paths: Paths) -> dict[str, Any]:
    """Return the metrics of the stage `evaluate`. Raises `InputError` if there are none."""
    path = paths.results("evaluate")
    if not path.is_file():
        raise InputError(f"{path}: no evaluation yet; run `dvc repro` first")
    return read_json(path)


def _headline(metrics: Mapping[str, Any]) -> str:
    return next(name for name in metrics if name.startswith("paired_")).removeprefix("paired_")


def _table(metrics: Mapping[str, Any], ablations: bool = True) -> TextTable:
    """Return the table of NDCG and Recall at the largest cutoff with 95 % intervals, and of the in-catalog share."""
    headline, rows = _headline(metrics), []
    shown = (headline, headline.replace("ndcg", "recall"))
    names = system_names(metrics)
    for system, label in ((key, name) for key, name in names.items() if ablations or not is_ablation(key)):
        scores = metrics[system]
        cells = [f"{scores[name]:.3f} {spread(scores['intervals'][name])}" for name in shown]
        rows.append([label, *cells, f"{scores['in_catalog']:.3f}"])
    return TextTable(["system", *map(metric_label, shown), "in catalog"], rows)


def _notes(metrics: Mapping[str, Any]) -> list[str]:
    """Return lines about the baselines' hyper-parameters and the paired differences, with headings."""
    headline, systems, lines = _headline(metrics), system_names(metrics), []
    label = metric_label(headline)
    if baselines := metrics.get("baselines"):
        lines.append(f"Baselines, {label} on the validation split, which sets their parameters:")
        for key, baseline in baselines.items():
            words = settings_words(baseline["settings"])
            best = ", the best on validation" if key == metrics["best_baseline"] else ""
            score = baseline[f"validation_{headline}"]
            lines.append(f"  {systems[key]}: {score:.4f}{best}{f' ({words})' if words else ''}")
    lines.append(f"Paired differences in {label}, over {metrics['n_rows']} rows:")
    for name, gain in metrics[f"paired_{headline}"].items():
        one, other = (systems[system] for system in system_pair(name))
        lines.append(f"  {one} over {other}: {gain_words(gain)}")
    return lines


def _title(metrics: Mapping[str, Any]) -> str:
    return f"Test split: {metrics['n_rows']} rows, {metrics['n_prompts']} prompts; ± half of a 95 % interval"


def print_results(paths: Paths) -> None:
    """Print a row for each system, then the notes. Raises `InputError` before the first evaluation."""
    metrics = read_evaluation(paths)
    _table(metrics)._replace(title=_title(metrics)).print()
    Console(highlight=False).print(*_notes(metrics), sep="\n", soft_wrap=True, markup=False)


def results_words(paths: Paths) -> list[str]:
    """Return the verdict and the other findings, as sentences."""
    metrics = read_evaluation(paths)
    return findings(metrics, system_names(metrics), _headline(metrics))


def print_summary(paths: Paths, decision: str) -> None:
    """Print the decision on the model, the findings, then a row for each system as served."""
    console, lines = Console(highlight=False), ["", decision, *results_words(paths)]
    console.print(*lines, sep="\n", markup=False, soft_wrap=not console.is_terminal)  # a terminal's lines end at words
    _table(read_evaluation(paths), ablations=False).print()


def results_markdown(paths: Paths) -> str:
    """Return the table and the notes of `print_results` as Markdown."""
    metrics = read_evaluation(paths)
    notes = "\n".join(f"- {line.strip()}" if line.startswith(" ") else f"\n{line}\n" for line in _notes(metrics))
    return f"{_title(metrics)}\n\n{_table(metrics).markdown()}{notes}\n"
