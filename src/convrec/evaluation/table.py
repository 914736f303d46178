"""The results table for the terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from convrec.errors import InputError
from convrec.evaluation.systems import system_names, system_pair
from convrec.paths import Paths
from convrec.stages.files import read_json

MAX_CUTOFFS = 3  # the widest so many are shown: the table fits 80 columns


def _cell(scores: dict[str, Any], name: str, with_interval: bool) -> str:
    interval = scores["intervals"].get(name) if with_interval else None
    beneath = f"\n{interval['low']:.3f}-{interval['high']:.3f}".replace("0.", ".") if interval else ""
    return f"{scores[name]:.4f}{beneath}"


def print_results(paths: Paths) -> None:
    """Print one row a system: Recall@K, NDCG@K and the in-catalog share on the test split.

    Beneath the widest cutoff's stand the 95 % intervals. Raises `InputError` before the first evaluation.
    """
    path = paths.metrics("evaluate")
    if not path.is_file():
        raise InputError(f"{path}: no evaluation yet; run `dvc repro` first")
    metrics = read_json(path)
    systems = system_names(metrics)
    first = next(iter(systems))
    cutoffs = sorted(int(name.rsplit("_", 1)[1]) for name in metrics[first] if name.startswith("ndcg_at_"))
    shown = [f"{metric}_at_{k}" for metric in ("recall", "ndcg") for k in cutoffs[-MAX_CUTOFFS:]] + ["in_catalog"]
    title = f"Test split: {metrics['n_rows']} rows, {metrics['n_prompts']} prompts"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("system", no_wrap=True)
    for name in shown:
        heading = name.replace("recall_at_", "R@").replace("ndcg_at_", "N@").replace("in_catalog", "in cat.")
        table.add_column(heading, justify="right", no_wrap=True)
    for system, label in systems.items():
        cells = (_cell(metrics[system], name, name.endswith(f"_at_{cutoffs[-1]}")) for name in shown)
        table.add_row(label.replace(", ", ",\n"), *cells)
    console = Console(highlight=False)
    console.print(table)
    for key, gains in metrics.items():
        if key.startswith("paired_"):
            label = key.removeprefix("paired_").replace("ndcg_at_", "NDCG@")
            console.print(f"Paired differences in {label}, with 95 % intervals, over {metrics['n_rows']} rows:")
            for name, gain in gains.items():
                one, other = (systems[system] for system in system_pair(name))
                spread = f"[{gain['low']:+.4f}, {gain['high']:+.4f}]"
                console.print(f"  {one} over {other}: {gain['mean']:+.4f} {spread} p = {gain['p']:.4f}", soft_wrap=True)
