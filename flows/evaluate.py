"""The nightly flow: scores champion and challenger on the current test split.

Run it with `python -m flows.evaluate`.
"""

from typing import Any

from prefect import flow
from rich.console import Console
from rich.markdown import Markdown

from convrec.evaluation.headline import with_interval
from convrec.evaluation.metrics import metric_label
from convrec.project.config.params import load_params
from convrec.project.table import TextTable
from flows.pipeline import bring_up_to_date, check_folder, refuse_early, run_name, run_or_exit
from tasks.artifacts import show_link, show_table
from tasks.promotion import evaluate_versions


def _table(results: dict[str, dict[str, Any]], metrics: list[str]) -> str:
    """Return a Markdown table with one row for each version."""
    first = next(iter(results.values()))
    rows = [
        [name, *(with_interval(result["metrics"][metric]) for metric in metrics)] for name, result in results.items()
    ]
    table = TextTable(["version", *map(metric_label, metrics)], rows).markdown()
    return f"Test split: {first['n_rows']} rows, {first['n_prompts']} prompts, constrained lists\n\n{table}"


@flow(name="evaluate", flow_run_name=run_name("evaluate"))
def evaluate() -> str:
    """Score the champion and the challenger on the current test split; return the table.

    The data stage is brought up to date first. Nothing is trained, and no alias changes.
    """
    from convrec.registry.tracking import run_address

    refuse_early(_check)
    bring_up_to_date("evaluate", stages=["data"])
    widest = max(load_params().common.cutoffs)
    results = evaluate_versions()
    table = _table(results, [f"ndcg_at_{widest}", f"recall_at_{widest}", "in_catalog", "seen"])
    show_table("evaluation", table, "Champion and challenger on the current test split")
    for name, result in results.items():
        address = run_address(result["run_id"])
        if address:
            show_link(f"evaluation {name.split(',')[0]}", address, f"The run of the {name} in MLflow")
    return table


def _check() -> None:
    from convrec.registry.versions import compared_versions

    compared_versions()
    check_folder()


if __name__ == "__main__":
    Console().print(Markdown(run_or_exit("evaluate", evaluate, _check)))
