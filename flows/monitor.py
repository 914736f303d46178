"""The flows that watch the service: the recorded feedback of the last days, and the online experiment.

They run as deployments; `convrec monitor` and `convrec experiment status --stop-if-worse` do the same at once.
"""

from datetime import UTC, datetime
from typing import Any

from prefect import flow

from convrec.project.errors import InputError
from convrec.service.feedback import open_store
from convrec.service.monitoring.settings import load_monitoring
from flows.pipeline import bring_up_to_date, refuse_early, run_name
from tasks.champion import watch_experiment
from tasks.monitoring import check_feedback


@flow(name="monitor", flow_run_name=run_name("monitor"))
def monitor(until: str | None = None) -> dict[str, Any]:
    """Check the feedback of the window that ends at `until` (UTC), by default now; return the result.

    The data stage is brought up to date first, because the feedback is compared with the training data. An alarm emits
    the event `convrec.monitor.alarm`; the run itself succeeds.
    """
    end = _end(until)
    refuse_early(load_monitoring)
    refuse_early(lambda: open_store().close())
    bring_up_to_date("monitor", stages=["data"])
    return check_feedback(end)


def _end(until: str | None) -> datetime:
    try:
        end = datetime.fromisoformat(until) if until else datetime.now(UTC)
    except ValueError:
        raise InputError(f"until = {until!r:.40}: give a day such as 2022-04-04, or 2022-04-04T12:00") from None
    return end if end.tzinfo else end.replace(tzinfo=UTC)


@flow(name="experiment", flow_run_name=run_name("experiment"))
def experiment() -> str:
    """Return the result of the running experiment in one line; it ends if the challenger is significantly worse."""
    return watch_experiment()
