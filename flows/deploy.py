"""`make deploy`: registers the deployments of prefect.yaml, and what their runs need, on the server of PREFECT_API_URL.

Run it again to update them. Start workers separately: `prefect worker start --pool cpu`, or `gpu`.
"""

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.events.actions import CallWebhook, ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectAlreadyExists
from prefect.types import SecretDict
from pydantic import SecretStr
from rich.console import Console
from rich.markup import escape

from convrec.project.errors import InputError, Unavailable, exit_status
from convrec.service.monitoring.settings import SETTINGS_FILE, Alarm, load_monitoring
from tasks.command import tool_path
from tasks.monitoring import EVENT, RESOURCE
from tasks.server import check_server, ensure_gpu_limit, has_server

POOLS = ("cpu", "gpu")
POOL_VARIABLE = "CONVREC_TRAINING_POOL"  # used in prefect.yaml
HEARTBEAT = "prefect.flow-run.heartbeat"
_ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended")
_SILENT_SECONDS = 120
WEBHOOK_VARIABLE, ALARM_BLOCK = "CONVREC_ALARM_WEBHOOK", "convrec-alarm"
ALARM_NAME = "convrec: alarm of the monitoring"
REFRESH = "refresh/monthly"  # the deployment that an alarm may run
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


def alarm_block(settings: Alarm) -> UUID | None:
    """Return the id of the webhook block that an alarm calls, saved if its URL is in the environment; None without one.

    Raises `InputError` if there is no such block.
    """
    url = os.environ.get(WEBHOOK_VARIABLE)
    if url and settings.webhook:
        raise InputError(
            f"{WEBHOOK_VARIABLE} and alarm.webhook = {settings.webhook!r} ({SETTINGS_FILE}): give one of the two"
        )
    if url:
        block: Any = Webhook(url=SecretStr(url), headers=SecretDict({"content-type": "application/json"}))
        return block.save(ALARM_BLOCK, overwrite=True)
    if settings.webhook is None:
        return None
    try:
        block = Webhook.load(settings.webhook)
    except ValueError as error:
        raise InputError(
            f"{SETTINGS_FILE}: alarm.webhook = {settings.webhook!r}: Prefect has no such webhook block "
            f"({str(error).splitlines()[0][:120]}); create it, or set {WEBHOOK_VARIABLE}"
        ) from None
    return block._block_document_id


def alarm_automation(block: UUID | None, deployment: UUID | None) -> AutomationCore | None:
    """Return what follows an alarm: a call of a webhook block, a run of a deployment, or both; None for neither."""
    actions: list[Any] = []
    if block is not None:
        actions.append(CallWebhook(block_document_id=block, payload="{{ event.payload | tojson }}"))
    if deployment is not None:
        actions.append(RunDeployment(source="selected", deployment_id=deployment))
    if not actions:
        return None
    return AutomationCore(
        name=ALARM_NAME,
        description="An alarm of the flow monitor (docs/monitoring.md).",
        trigger=EventTrigger(
            expect={EVENT},
            match={"prefect.resource.id": RESOURCE},
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=actions,
    )


def make_alarm(settings: Alarm, block: UUID | None) -> None:
    """Create the automation of alarms, or remove it if nothing follows an alarm; the deployments must exist."""
    deployment = None
    if settings.refresh:
        with get_client(sync_client=True) as client:
            deployment = client.read_deployment_by_name(REFRESH).id
    _replace_automation(ALARM_NAME, alarm_automation(block, deployment))


def _replace_automation(name: str, automation: AutomationCore | None) -> None:
    from anyio import run

    async def replace() -> None:
        async with get_client() as client:
            for found in await client.read_automations_by_name(name):
                await client.delete_automation(found.id)
            if automation is not None:
                await client.create_automation(automation)

    run(replace)


def main() -> None:
    """Create work pools, the concurrency limit and the automations, and register the deployments."""
    parser = argparse.ArgumentParser(prog="python -m flows.deploy", description=__doc__)
    parser.add_argument(
        "--training-pool", choices=POOLS, default="gpu", help="the work pool of training and evaluation: %(default)s"
    )
    options, console = parser.parse_args(), Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        if not has_server():
            raise InputError("PREFECT_API_URL is not set; set it to the server's address (docs/stack.md)")
        check_server()
        alarm = load_monitoring().alarm
        block = alarm_block(alarm)
    except (InputError, Unavailable) as error:
        console.print(f"[red]{escape(str(error))}[/red]")
        sys.exit(exit_status(error))
    _make_pools()
    ensure_gpu_limit()
    _replace_automation(LOST.name, LOST)
    environment = {**os.environ, "PATH": tool_path(), POOL_VARIABLE: options.training_pool}
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status == 0:
        make_alarm(alarm, block)
        console.print("Your own workers need CONVREC_REPOSITORY and CONVREC_WORKSPACES (docs/operations.md).")
    sys.exit(status)


if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "ERROR")
    main()
