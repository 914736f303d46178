"""The results table for the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table

from convrec.errors import InputError
from convrec.paths import Paths
from convrec.stages.files import read_json

SYSTEMS = {
    "popularity": "popularity",
    "last_month": "last month",
    "neighbours": "neighbours",
    "zero_shot": "zero-shot",
    "sft": "SFT",
    "rank_grpo": "Rank-GRPO",
    "oracle": "oracle",
}


def print_results(paths: Paths) -> None:
    """Print one row a system: Recall@K, NDCG@K and the in-catalog share on the test split.

    Raises `InputError` before the first evaluation.
    """
    path = paths.metrics("evaluate")
    if not path.is_file():
        raise InputError(f"{path}: no evaluation yet; run `dvc repro` first")
    metrics = read_json(path)
    systems = [name for name in SYSTEMS if name in metrics]
    names = [name for name in metrics[systems[0]] if name.startswith(("recall", "ndcg"))] + ["in_catalog"]
    title = f"Test split: {metrics['n_rows']} rows, {metrics['n_prompts']} prompts"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fits 80 columns
    table.add_column("system", no_wrap=True)
    for name in names:
        heading = name.replace("recall_at_", "R@").replace("ndcg_at_", "N@").replace("in_catalog", "in catalog")
        table.add_column(heading, justify="right", no_wrap=True)
    for system in systems:
        table.add_row(SYSTEMS[system], *(f"{metrics[system][name]:.4f}" for name in names))
    console = Console(highlight=False)
    console.print(table)
    for key, gains in metrics.items():
        if key.startswith("paired_"):
            for name, gain in gains.items():
                baseline = SYSTEMS[name.removeprefix("rank_grpo_over_")]
                console.print(
                    f"Rank-GRPO over {baseline}, {key.removeprefix('paired_').replace('ndcg_at_', 'NDCG@')}: "
                    f"{gain['mean']:+.4f} (95 % interval {gain['low']:+.4f} to {gain['high']:+.4f})"
                )
