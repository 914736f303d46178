"""The training flow: bring every DVC stage up to date, register the checkpoint, promote it if it is better.

Run it with `python -m flows.train`: without a server in Prefect's own ephemeral mode, else against PREFECT_API_URL.
"""

import sys

from prefect import flow
from prefect.logging import get_run_logger
from rich.console import Console

from convrec.config import load_params
from convrec.errors import InputError
from convrec.evaluation.table import print_results
from convrec.paths import Paths
from tasks.dvc_stage import BadInput, StageFailed, ensure_gpu_limit, needs_run, run_stage, stage_order
from tasks.promotion import register_and_promote


def _open_record(profile: str) -> str:
    from convrec.tracking import start_pipeline_run

    return start_pipeline_run(f"train {profile}", {"profile": profile})


def _close_record(parent_run: str, failed: bool, paths: Paths) -> None:
    from convrec.tracking import end_pipeline_run

    end_pipeline_run(parent_run, paths, failed)


def _run_name() -> str:
    return f"train-{load_params().common.profile}"


@flow(name="train", flow_run_name=_run_name)
def train() -> dict[str, str]:
    """Run the stages that are out of date in the graph's order, then register and promote.

    Cached stages start no task; where all are cached, nothing is recorded.
    """
    logger = get_run_logger()
    paths = Paths()
    params = load_params()
    parent_run: str | None = None
    finished = False
    try:
        for stage, gpu in stage_order():
            if not needs_run(stage):
                logger.info("stage %s is up to date", stage)
                continue
            if gpu:
                ensure_gpu_limit()
            if parent_run is None:
                parent_run = _open_record(params.common.profile)
            run_stage(stage, gpu, parent_run)
        version, aliases, reason = register_and_promote(parent_run)
        finished = True
    finally:
        if parent_run is not None:
            _close_record(parent_run, not finished, paths)
    return {
        "ran": "yes" if parent_run else "no",
        "version": version,
        "aliases": ", ".join(aliases),
        "decision": reason,
    }


def main() -> None:
    """Run the flow and print what came of it."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        load_params()  # bad parameters are told before a flow run is made
        outcome = train()
    except (BadInput, StageFailed, InputError) as error:
        console.print(f"[red]{error}[/red]")
        sys.exit(1)
    if outcome["ran"] == "no":
        console.print("\nNothing to do: every stage is up to date.")
    print_results(Paths())
    console.print(f"Model: convrec-recommender version {outcome['version']} ({outcome['aliases'] or 'no alias'})")
    console.print(f"Decision: {outcome['decision']}")
    console.print(f"Report: {Paths().report}")
    console.print("Tracking UI: make ui")


if __name__ == "__main__":
    main()
