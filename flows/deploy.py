"""`make deploy`: registers the deployments of prefect.yaml, and what their runs need, on the server of PREFECT_API_URL.

Run it again to update them. Start workers separately: `prefect worker start --pool cpu`, or `gpu`.
"""

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists

from convrec.project.errors import InputError, Unavailable, exit_status
from tasks.command import tool_path
from tasks.server import check_server, ensure_gpu_limit, has_server

POOLS = ("cpu", "gpu")
HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")
_SILENT_SECONDS = 120
# A flow run sends a heartbeat every 30 seconds (job_variables in prefect.yaml). Without this automation, the run of a
# killed worker would stay "running" and block its deployment, which allows one run at a time.
LOST = Automation(
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


def main() -> None:
    """Create work pools, the concurrency limit and the automation of lost runs, and register the deployments."""
    parser = argparse.ArgumentParser(prog="python -m flows.deploy", description=__doc__)
    parser.add_argument(
        "--training-pool", choices=POOLS, default="gpu", help="the work pool of training and evaluation: %(default)s"
    )
    options = parser.parse_args()
    try:
        if not has_server():
            raise InputError("PREFECT_API_URL is not set; set it to the server's address (docs/stack.md)")
        check_server()
    except (InputError, Unavailable) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(exit_status(error))
    with get_client(sync_client=True) as client:
        for name in POOLS:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    ensure_gpu_limit()
    with suppress(ValueError):  # the first time, there is none
        Automation.read(name=LOST.name).delete()
    LOST.create()
    environment = {**os.environ, "PATH": tool_path(), "CONVREC_TRAINING_POOL": options.training_pool}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status == 0:
        sys.stderr.write("Your own workers need CONVREC_REPOSITORY and CONVREC_WORKSPACES (docs/operations.md).\n")
    sys.exit(status)


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    main()
