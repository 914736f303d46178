"""The training flow: bring every DVC stage up to date, register the checkpoint, promote it if it is better.

Run it with `python -m flows.train`: without a server in Prefect's own ephemeral mode, else against PREFECT_API_URL.
"""

import sys
from collections.abc import Callable

from prefect import flow
from prefect.logging import get_run_logger
from rich.console import Console

from convrec.config import load_params
from convrec.errors import InputError
from convrec.evaluation.table import print_results
from convrec.paths import Paths
from tasks.dvc_stage import BadInput, StageFailed, ensure_gpu_limit, needs_run, run_stage, stage_order
from tasks.promotion import register_and_promote


def _open_record(name: str, profile: str) -> str:
    from convrec.tracking import start_pipeline_run

    return start_pipeline_run(f"{name} {profile}", {"profile": profile})


def _close_record(parent_run: str, failed: bool, paths: Paths) -> None:
    from convrec.tracking import end_pipeline_run

    end_pipeline_run(parent_run, paths, failed)


def _run_name() -> str:
    return f"train-{load_params().common.profile}"


def bring_up_to_date(name: str, after_data: Callable[[str], None] | None = None) -> dict[str, str]:
    """Run the stages that are out of date in the graph's order, then register and promote; return what came of it.

    Cached stages start no task; where all are cached, nothing is recorded. `after_data` is called with the id of the
    parent run once the stage `data` has run.
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
                parent_run = _open_record(name, params.common.profile)
            run_stage(stage, gpu, parent_run)
            if stage == "data" and after_data is not None:
                after_data(parent_run)
        version, aliases, reason = register_and_promote(parent_run)
        finished = True
    finally:
        if parent_run is not None:
            _close_record(parent_run, not finished, paths)
    return {
        "run": parent_run or "",
        "version": version,
        "aliases": ", ".join(aliases),
        "decision": reason,
    }


@flow(name="train", flow_run_name=_run_name)
def train() -> dict[str, str]:
    """Bring every stage up to date with params.yaml and the data at hand, then register and promote."""
    return bring_up_to_date("train")


def tell(run: Callable[[], dict[str, str]]) -> None:
    """Run a flow and print what came of it; mistakes of the user end with one message and status 1."""
    console = Console(highlight=False, soft_wrap=True)
    try:
        load_params()  # bad parameters are told before a flow run is made
        outcome = run()
    except (BadInput, StageFailed, InputError) as error:
        console.print(f"[red]{error}[/red]")
        sys.exit(1)
    if not outcome["run"]:
        console.print("\nNothing to do: every stage is up to date.")
    print_results(Paths())
    console.print(f"Model: convrec-recommender version {outcome['version']} ({outcome['aliases'] or 'no alias'})")
    console.print(f"Decision: {outcome['decision']}")
    if outcome["run"]:
        console.print(f"Run: {outcome['run']}")
    console.print(f"Report: {Paths().report}")
    console.print("Tracking UI: make ui")


if __name__ == "__main__":
    tell(train)
