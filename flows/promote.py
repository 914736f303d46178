"""The promotion flow: compares a version with the champion on the current test data, with approval if required.

Run it with `python -m flows.promote`, or `convrec promote` without Prefect.
"""

import argparse
from typing import Any

from prefect import flow
from prefect.flow_runs import pause_flow_run
from prefect.input import RunInput
from prefect.logging import get_run_logger
from pydantic import Field
from rich.console import Console

from convrec.project.config.params import load_params
from convrec.project.paths import Paths
from flows.pipeline import bring_up_to_date, check_folder, refuse_early, run_name, run_or_exit
from tasks.artifacts import SHOWN
from tasks.promotion import decide_promotion, reject_version
from tasks.server import has_server


class Approval(RunInput):
    """The form that a person fills in when resuming the run in Prefect's UI."""

    approve: bool = Field(default=False, description="promote the version")
    name: str = Field(min_length=1, description="who decides")
    reason: str = Field(default="", description="recorded with a rejection")


@flow(name="promote", flow_run_name=run_name("promote"))
def promote(version: str | None = None, again: bool = False, approval_hours: float = 48.0) -> str:
    """Decide on a version, by default the challenger, by promotion.yaml; return the decision in one line.

    The data stage is brought up to date first, so that both versions are compared on the current test split. If the
    policy requires approval, the run pauses for up to `approval_hours`. After that the run fails, but the version still
    awaits approval (`convrec promote --approve`). `again` permits a version that was rolled back.
    """
    logger = get_run_logger()
    refuse_early(lambda: _check(version))
    bring_up_to_date("promote", stages=["data"])
    decision = decide_promotion(version, again)
    if not decision["awaiting"]:
        return decision["headline"]
    if not has_server():
        logger.info("to approve: convrec promote --version %s --approve --by NAME", decision["version"], extra=SHOWN)
        return decision["headline"]
    said: Any = pause_flow_run(
        wait_for_input=Approval.with_initial_data(description=decision["markdown"]),
        timeout=int(approval_hours * 3600),
    )
    if said.approve:
        return decide_promotion(decision["version"], again, approved_by=said.name)["headline"]
    return reject_version(decision["version"], said.name, said.reason)


def _check(version: str | None) -> None:
    from convrec.registry.promote import check_promotion

    check_promotion(load_params(), Paths(), version)
    check_folder()


def main() -> None:
    """Run the flow from the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.promote", description=promote.description)
    parser.add_argument("--version", metavar="N", help="version to decide on (default: the challenger)")
    parser.add_argument("--again", action="store_true", help="permit a version that was rolled back")
    options = parser.parse_args()
    message = run_or_exit("promote", lambda: promote(options.version, options.again), lambda: _check(options.version))
    Console(highlight=False, soft_wrap=True).print(message)


if __name__ == "__main__":
    main()
