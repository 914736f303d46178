"""The monitoring flow: checks the recorded feedback of the last days, and raises an alarm.

Run it with `python -m flows.monitor`, or `convrec monitor` without Prefect.
"""

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from rich.console import Console

from convrec.pipeline.commands.feedback import EXIT_ALARM
from convrec.project.errors import InputError
from flows.pipeline import bring_up_to_date, check_folder, refuse_early, run_name, run_or_exit
from tasks.monitoring import check_feedback, emit_alarm


@flow(name="monitor", flow_run_name=run_name("monitor"))
def monitor(until: str | None = None) -> dict[str, Any]:
    """Check the feedback of the window that ends at `until` (UTC), by default now; return the result.

    The data stage is brought up to date first, because the feedback is compared with the training data. An alarm emits
    the event `convrec.monitor.alarm`; the run itself succeeds.
    """
    refuse_early(lambda: _check(until))
    bring_up_to_date("monitor", stages=["data"])
    result = check_feedback(until)
    if result["alarm"]:
        get_run_logger().warning("alarm: see the report")
        emit_alarm(result, str(flow_run.get_id()))
    return result


def _check(until: str | None) -> None:
    from convrec.service.feedback import open_store
    from convrec.service.monitoring.settings import load_monitoring

    if until is not None:
        try:
            datetime.fromisoformat(until)
        except ValueError:
            raise InputError(f"until = {until!r:.40}: give a day such as 2022-04-04, or 2022-04-04T12:00") from None
    load_monitoring()
    open_store(Path()).close()
    check_folder()


def main() -> None:
    """Run the flow from the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.monitor", description=monitor.description)
    parser.add_argument("--until", metavar="TIME", help="end of the window in UTC (default: now)")
    options = parser.parse_args()
    result = run_or_exit("monitor", lambda: monitor(options.until), lambda: _check(options.until))
    Console(highlight=False, soft_wrap=True).print(f"Report: {result['report']}")
    sys.exit(EXIT_ALARM if result["alarm"] else 0)


if __name__ == "__main__":
    main()
