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
    """The metrics of the stage `evaluate`, the systems' names by key, and the cutoffs."""

    metrics: dict[str, Any]
    systems: dict[str, str]
    cutoffs: list[int]

    @classmethod
    def read(cls, paths: Paths) -> "_Results":
        metrics = read_evaluation(paths)
        systems = system_names(metrics)
        first = metrics[next(iter(systems))]
        return cls(metrics, systems, sorted(int(name[8:]) for name in first if name.startswith("ndcg_at_")))

    def title(self) -> str:
        return f"Test split: {self.metrics['n_rows']} rows, {self.metrics['n_prompts']} prompts"

    def table(self, title: str, before_interval: str, comma: str) -> TextTable:
        """Return the table of Recall@K, NDCG@K and the in-catalog share; the largest K has 95 % intervals."""
        names = [f"{metric}_at_{k}" for metric in ("recall", "ndcg") for k in self.cutoffs[-MAX_CUTOFFS:]]
        rows = []
        for system, label in self.systems.items():
            scores, cells = self.metrics[system], []
            for name in [*names, "in_catalog"]:
                cells.append(f"{scores[name]:.4f}")
                if name.endswith(f"_at_{self.cutoffs[-1]}"):
                    low, high = (scores["intervals"][name][end] for end in ("low", "high"))
                    cells[-1] += before_interval + f"{low:.3f}-{high:.3f}".replace("0.", ".")
            rows.append([label.replace(", ", comma), *cells])
        return TextTable(["system", *(metric_label(name, short=True) for name in [*names, "in_catalog"])], rows, title)

    def notes(self) -> list[str]:
        """Return lines about the baselines' hyper-parameters and the paired differences, with headings."""
        headline, lines = f"ndcg_at_{self.cutoffs[-1]}", []
        label = metric_label(headline)
        if baselines := self.metrics.get("baselines"):
            lines.append(f"Baselines, {label} on the validation split, which sets their parameters:")
            for key, baseline in baselines.items():
                words = settings_words(baseline["settings"])
                best = ", the best on validation" if key == self.metrics["best_baseline"] else ""
                score = baseline[f"validation_{headline}"]
                lines.append(f"  {self.systems[key]}: {score:.4f}{best}{f' ({words})' if words else ''}")
        lines.append(f"Paired differences in {label}, with 95 % intervals, over {self.metrics['n_rows']} rows:")
        for name, gain in self.metrics[f"paired_{headline}"].items():
            one, other = (self.systems[system] for system in system_pair(name))
            interval = f"[{gain['low']:+.4f}, {gain['high']:+.4f}]"
            lines.append(f"  {one} over {other}: {gain['mean']:+.4f} {interval} p = {gain['p']:.4f}")
        return lines


def read_evaluation(paths: Paths) -> dict[str, Any]:
    """Return the metrics of the stage `evaluate`. Raises `InputError` before the first evaluation."""
    path = paths.results("evaluate")
    if not path.is_file():
        raise InputError(f"{path}: no evaluation yet; run `dvc repro` first")
    return read_json(path)


def print_results(paths: Paths) -> None:
    """Print a row for each system, then the notes. Raises `InputError` before the first evaluation."""
    found = _Results.read(paths)
    found.table(found.title(), "\n", ",\n").print()
    Console(highlight=False).print(*found.notes(), sep="\n", soft_wrap=True, markup=False)


def print_summary(paths: Paths) -> None:
    """Print the main findings in words, and the scores of each system at the largest cutoff.

    Raises `InputError` before the first evaluation.
    """
    metrics, systems, cutoffs = _Results.read(paths)
    shown, rows = (f"ndcg_at_{cutoffs[-1]}", f"recall_at_{cutoffs[-1]}"), []
    for system, label in systems.items():
        scores = metrics[system]
        cells = [f"{scores[name]:.3f} {spread(scores['intervals'][name])}" for name in shown]
        rows.append([label, *cells, f"{scores['in_catalog']:.3f}"])
    words = findings(metrics, systems, shown[0])
    Console(highlight=False).print("", *words, sep="\n", markup=False, soft_wrap=True)
    TextTable(["system", *map(metric_label, shown), "in catalog"], rows).print()


def results_markdown(paths: Paths) -> str:
    """Return the table of `print_results` as Markdown. Raises `InputError` before the first evaluation."""
    found = _Results.read(paths)
    notes = "\n".join(f"- {line.strip()}" if line.startswith(" ") else f"\n{line}\n" for line in found.notes())
    return f"{found.title()}\n\n{found.table('', ' ', ', ').markdown()}{notes}\n"
