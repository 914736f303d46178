"""`convrec monitor`, `convrec replay`: what the recorded feedback says about the champion and about another version."""

import argparse
import json
import re
from datetime import UTC, datetime
from typing import Any

from convrec.commands import add_command
from convrec.errors import InputError

EXIT_ALARM = 3
_PAGE = "docs/monitoring.md"
_LONGEST = 3660  # days


def add(commands: Any) -> None:
    """Add the commands."""
    text = "check recent feedback for drift and failures, and write a report"
    monitor = add_command(commands, "monitor", _monitor, text, "convrec monitor --until 2022-04-04", _PAGE)
    monitor.epilog = f"{monitor.epilog}. Exit status: 0 no alarm, 3 an alarm, 2 bad input."
    text = "estimate from logged answers what users would accept of another version"
    replay = add_command(commands, "replay", _replay, text, "convrec replay --version 4 --window 30d", _PAGE)
    replay.add_argument("--version", metavar="N", help="default: the challenger")
    replay.add_argument(
        "--window", type=_days, default=30, metavar="DAYS", help="answers of the last days, such as 30d; default: 30d"
    )
    for command in (monitor, replay):
        command.add_argument(
            "--until",
            type=_time,
            metavar="TIME",
            help="end of the window in UTC, YYYY-MM-DD or with THH:MM; default: now",
        )
        command.add_argument(
            "--feedback", metavar="URL", help="the feedback database; default: CONVREC_FEEDBACK_URL, or the project's"
        )
        command.add_argument("--json", action="store_true", help="print one JSON object")


def _days(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,3})d", text)
    if match is None or int(match[1]) > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text:.40}: give days from 1d to {_LONGEST}d, such as 30d")
    return int(match[1])


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
    from convrec.config.params import load_params
    from convrec.experiments.monitor import monitor
    from convrec.monitoring.checks import Check
    from convrec.paths import Paths

    result = monitor(load_params(), Paths(), options.until or datetime.now(UTC), options.feedback)
    if options.json:
        print(json.dumps(result))
    else:
        for check in result["checks"]:
            print(Check(**check))
        print(f"Report: {result['report']}")
    return EXIT_ALARM if result["alarm"] else 0


def _replay(options: argparse.Namespace) -> None:
    if options.version is not None and not re.fullmatch("[1-9][0-9]{0,8}", options.version):
        raise InputError(f"--version {options.version:.40}: give the number of a version (`convrec registry list`)")
    from convrec.config.params import load_params
    from convrec.experiments.replay import print_replay, replay_on_feedback
    from convrec.paths import Paths

    given = options.version, options.window, options.until, options.feedback
    result = replay_on_feedback(load_params(), Paths(), *given)
    if options.json:
        print(json.dumps(result))
    else:
        print_replay(result)
