"""`make deploy`: registers the deployments of prefect.yaml, and what their runs need, on the server of PREFECT_API_URL.

Run it again to update them. Start workers separately: `prefect worker start --pool cpu`, or `gpu`.
"""

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists
from rich.console import Console
from rich.markup import escape

from convrec.errors import InputError, Unavailable, exit_status
from convrec.workspaces import FOLDER_VARIABLE, REPOSITORY_VARIABLE
from tasks.dvc_stage import check_server, ensure_gpu_limit, has_server, tool_environment

POOLS = ("cpu", "gpu")
POOL_VARIABLE = "CONVREC_TRAINING_POOL"  # used in prefect.yaml
HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")
_SILENT_SECONDS = 120
# A flow run sends a heartbeat every 30 seconds (job_variables in prefect.yaml). Without this automation, the run of a
# killed worker would stay "running" and block its deployment, which allows one run at a time.
LOST = AutomationCore(
    name="convrec: flow runs without heartbeat have crashed",
    description="No heartbeat: the worker was killed. The next run resumes from the last checkpoint.",
    trigger=EventTrigger(
        after={HEARTBEAT},
        expect={HEARTBEAT, *(f"prefect.flow-run.{state}" for state in _ENDS)},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=_SILENT_SECONDS),
    ),
    actions=[
        ChangeFlowRunState(
            state=StateType.CRASHED,
            message=f"no heartbeat for {_SILENT_SECONDS} s: the process or its machine has died",
        )
    ],
)


def _make_pools() -> None:
    with get_client(sync_client=True) as client:
        for name in POOLS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def _make_automation() -> None:
    from anyio import run

    async def replace() -> None:
        async with get_client() as client:
            for found in await client.read_automations_by_name(LOST.name):
                await client.delete_automation(found.id)
            await client.create_automation(LOST)

    run(replace)


def main() -> None:
    """Create work pools, the concurrency limit and the automation, then register the deployments."""
    parser = argparse.ArgumentParser(prog="python -m flows.deploy", description=__doc__)
    parser.add_argument(
        "--training-pool", choices=POOLS, default="gpu", help="the work pool of training and evaluation: %(default)s"
    )
    options, console = parser.parse_args(), Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        if not has_server():
            raise InputError(
                "PREFECT_API_URL is not set; set it to the server's address (`make stack-up` writes it to .stack/env)"
            )
        check_server()
    except (InputError, Unavailable) as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        sys.exit(exit_status(error))
    _make_pools()
    ensure_gpu_limit()
    _make_automation()
    environment = {**tool_environment(), POOL_VARIABLE: options.training_pool}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status == 0:
        console.print(f"Your own workers need {REPOSITORY_VARIABLE} and {FOLDER_VARIABLE} (docs/operations.md).")
    sys.exit(status)


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    main()
