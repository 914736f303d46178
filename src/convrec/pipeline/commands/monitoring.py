"""`convrec monitor`: what the recorded feedback says about the champion."""

import json
from datetime import UTC, datetime

from convrec.pipeline.commands import WATCH, AsJson, FeedbackUrl, app

EXIT_ALARM = 3


@app.command(group=WATCH)
def monitor(*, until: datetime | None = None, url: FeedbackUrl = None, as_json: AsJson = False) -> int:
    """Check recent feedback for drift and failures, and write a report (docs/monitoring.md).

    Example: convrec monitor --until 2022-04-04

    Exit status: 0 no alarm, 3 an alarm, 2 bad input.

    Args:
        until: End of the window in UTC, YYYY-MM-DD or with THH:MM; default: now.
    """
    from convrec.pipeline.monitor import monitor as check
    from convrec.project.config.params import load_params
    from convrec.project.paths import Paths
    from convrec.service.monitoring.checks import Check

    end = until.replace(tzinfo=UTC) if until else datetime.now(UTC)
    result = check(load_params(), Paths(), end, url)
    if as_json:
        print(json.dumps(result))
    else:
        for found in result["checks"]:
            print(Check(**found))
        print(f"Report: {result['report']}")
    return EXIT_ALARM if result["alarm"] else 0
