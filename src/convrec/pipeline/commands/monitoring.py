"""`convrec monitor`: what the recorded feedback says about the champion."""

import argparse
import json
import re
from datetime import UTC, datetime
from typing import Any

from convrec.pipeline.commands import add_command

EXIT_ALARM = 3


def add(commands: Any) -> None:
    """Add the command."""
    text = "check recent feedback for drift and failures, and write a report"
    example = "convrec monitor --until 2022-04-04"
    command = add_command(commands, "monitor", _monitor, text, example, "docs/monitoring.md")
    command.epilog = f"{command.epilog}. Exit status: 0 no alarm, 3 an alarm, 2 bad input."
    command.add_argument(
        "--until", type=_time, metavar="TIME", help="end of the window in UTC, YYYY-MM-DD or with THH:MM; default: now"
    )
    command.add_argument(
        "--feedback", metavar="URL", help="the feedback database; default: CONVREC_FEEDBACK_URL, or the project's"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _time(text: str) -> datetime:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", text):
        raise argparse.ArgumentTypeError(
            f"{text:.40}: give a day such as 2022-04-04, or a time such as 2022-04-04T12:00"
        )
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text:.40}: {error}") from None


def _monitor(options: argparse.Namespace) -> int:
    from convrec.pipeline.monitor import monitor
    from convrec.project.config.params import load_params
    from convrec.project.paths import Paths
    from convrec.service.monitoring.checks import Check

    result = monitor(load_params(), Paths(), options.until or datetime.now(UTC), options.feedback)
    if options.json:
        print(json.dumps(result))
    else:
        for check in result["checks"]:
            print(Check(**check))
        print(f"Report: {result['report']}")
    return EXIT_ALARM if result["alarm"] else 0
