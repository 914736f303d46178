"""`convrec feedback` and `convrec monitor`: the recorded answers and events, and what they say about the champion."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import REGISTRY, WATCH, AsJson, FeedbackUrl, Whole, add_group, app, project

EXIT_ALARM = 3

if TYPE_CHECKING:
    from convrec.service.feedback import FeedbackStore

feedback = add_group(
    "feedback", REGISTRY, "Export, delete and count recorded answers and what users did with them (docs/feedback.md)."
)


def _check_utc(_type: object, time: datetime | None) -> None:
    if time is not None and time.tzinfo is not None:
        raise ValueError("Give the time in UTC, without an offset.")


Time = Annotated[datetime | None, Parameter(validator=_check_utc)]


def _open(url: str | None) -> "FeedbackStore":
    """Return the store, to which the journals of services that ended are delivered; say which ones are not.

    Raises `InputError` if nothing was recorded.
    """
    from convrec.service.feedback import JOURNAL, FeedbackStore, feedback_url, open_store
    from convrec.service.feedback.journal import deliver_left

    if not JOURNAL.is_dir():  # otherwise a service may have recorded while its database was away
        return open_store(url)
    store = FeedbackStore(feedback_url(url))
    for text in deliver_left(JOURNAL, store):
        print(f"feedback is not delivered: {text}", file=sys.stderr)
    return store


@feedback.command
def status(*, url: FeedbackUrl = None) -> None:
    """Count what is recorded, and what was set aside."""
    from convrec.service.feedback import JOURNAL
    from convrec.service.feedback.journal import REFUSED

    store = _open(url)
    counts, (first, last) = store.counts(), store.period()
    period = f" ({first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC)" if first and last else ""
    print(f"{store.address}: {counts['answers']:,} answers{period}")
    print(f"{counts['shown']:,} shown items, {counts['events']:,} events")
    refused = JOURNAL / REFUSED
    if refused.is_file():
        with refused.open("rb") as stream:
            print(f"{sum(1 for _ in stream):,} records were set aside: {refused} has the reasons")


@feedback.command
def export(file: Path | None = None, /, *, since: Time = None, until: Time = None, url: FeedbackUrl = None) -> None:
    """Write one row for each shown item, with what the user did with it.

    Example: convrec feedback export feedback.csv --since 2026-05-01

    Args:
        file: .parquet, .csv or .jsonl; default: the file that the source `feedback` reads.
        since: First day of the answers (YYYY-MM-DD), in UTC.
        until: The day after the last one.
    """
    from convrec.data.sources.feedback import FILE
    from convrec.service.feedback.store import export as write

    file = file or FILE
    first, end = (time and time.replace(tzinfo=UTC) for time in (since, until))
    print(f"{file}: {write(_open(url), file, first, end):,} shown items")


@feedback.command
def delete_user(user_id: str, /, *, url: FeedbackUrl = None) -> None:
    """Delete all answers and events of a user.

    Example: convrec feedback delete-user u-17

    Args:
        user_id: The user_id that the requests had.
    """
    print(f"{_open(url).delete_user(user_id):,} answers deleted")
    print("Exported files and data/processed may still hold them: docs/privacy.md says how to delete these")


@feedback.command
def prune(*, days: Annotated[Whole, Parameter(validator=Number(gte=1, lte=36_500))], url: FeedbackUrl = None) -> None:
    """Delete answers and events that are older.

    Example: convrec feedback prune --days 180

    Args:
        days: Their age in days.
    """
    before = datetime.now(UTC) - timedelta(days=days)
    print(f"{_open(url).prune(before):,} answers before {before:%Y-%m-%d %H:%M} UTC deleted")


@app.command(group=WATCH)
def monitor(*, until: Time = None, url: FeedbackUrl = None, as_json: AsJson = False) -> int:
    """Check recent feedback for drift and failures, and write a report (docs/monitoring.md).

    Example: convrec monitor --until 2022-04-04

    Exit status: 0 no alarm, 3 an alarm, 2 bad input.

    Args:
        until: End of the window in UTC, YYYY-MM-DD or with THH:MM; default: now.
    """
    from convrec.pipeline.monitor import monitor as check
    from convrec.service.monitoring.checks import Check

    end = until.replace(tzinfo=UTC) if until else datetime.now(UTC)
    result = check(*project(), end, url)
    if as_json:
        print(json.dumps(result))
    else:
        for found in result["checks"]:
            print(Check(**found))
        print(f"Report: {result['report']}")
    return EXIT_ALARM if result["alarm"] else 0
