"""`convrec feedback`: the recorded answers and events."""

import argparse
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convrec.pipeline.commands import add_command

if TYPE_CHECKING:
    from convrec.service.feedback import FeedbackStore

_PAGE = "docs/feedback.md"


def add(groups: Any) -> None:
    """Add the subcommands of `convrec feedback`."""
    text = "export, delete and count recorded answers and what users did with them"
    feedback = add_command(groups, "feedback", None, text, "convrec feedback status", _PAGE)
    commands = feedback.add_subparsers(dest="feedback_command", required=True, metavar="SUBCOMMAND")
    text = "count what is recorded, and what waits for its delivery"
    _add_url(add_command(commands, "status", _status, text, "convrec feedback status", _PAGE))
    text = "write one row for each shown item, with what the user did with it"
    example = "convrec feedback export feedback.csv --since 2026-05-01"
    export = add_command(commands, "export", _export, text, example, _PAGE)
    export.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        nargs="?",
        help=".parquet, .csv or .jsonl; default: the file in data.feedback that the source `feedback` reads",
    )
    export.add_argument("--since", type=_day, metavar="YYYY-MM-DD", help="first day of the answers, in UTC")
    export.add_argument("--until", type=_day, metavar="YYYY-MM-DD", help="the day after the last one")
    _add_url(export)
    text = "delete all answers and events of a user"
    deletion = add_command(commands, "delete-user", _delete_user, text, "convrec feedback delete-user u-17", _PAGE)
    deletion.add_argument("user_id", metavar="ID", help="the user_id that the requests had")
    _add_url(deletion)
    text = "delete answers and events that are older"
    prune = add_command(commands, "prune", _prune, text, "convrec feedback prune --older-than 180d", _PAGE)
    prune.add_argument("--older-than", type=_days, metavar="DAYS", required=True, help="for instance 180d")
    _add_url(prune)


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--feedback", metavar="URL", help="the database; default: CONVREC_FEEDBACK_URL, or feedback/feedback.db"
    )


def _day(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text:.40}: give a day as YYYY-MM-DD") from None


def _days(text: str) -> timedelta:
    if not re.fullmatch(r"[1-9][0-9]{0,4}d", text):
        raise argparse.ArgumentTypeError(f"{text:.40}: give a number of days such as 180d")
    return timedelta(days=int(text[:-1]))


def _open(options: argparse.Namespace) -> "FeedbackStore":
    """Return the store, to which the journals of services that ended are delivered.

    Raises `InputError` if nothing was recorded.
    """
    from convrec.service.feedback import JOURNAL, FeedbackStore, feedback_url, open_store
    from convrec.service.feedback.journal import deliver_left

    if not JOURNAL.is_dir():  # otherwise a service may have recorded while its database was away
        return open_store(Path(), options.feedback)
    store = FeedbackStore(feedback_url(options.feedback))
    deliver_left(JOURNAL, store)
    return store


def _status(options: argparse.Namespace) -> None:
    """Print the numbers of records, their period, and what is not delivered."""
    from convrec.service.feedback import JOURNAL
    from convrec.service.feedback.journal import REFUSED, waiting

    store = _open(options)
    counts, (first, last) = store.counts(), store.period()
    period = f" ({first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC)" if first and last else ""
    print(f"{store.address}: {counts['answers']:,} answers{period}")
    print(f"{counts['shown']:,} shown items, {counts['events']:,} events")
    print(f"{waiting(JOURNAL):,} records wait in {JOURNAL} for running services to deliver them")
    refused = JOURNAL / REFUSED
    if refused.is_file():
        with refused.open("rb") as stream:
            print(f"{sum(1 for _ in stream):,} records were set aside: {refused} has the reasons")


def _export(options: argparse.Namespace) -> None:
    """Write the file."""
    from convrec.service.feedback.store import EXPORTED, export

    path = options.file
    if path is None:
        from convrec.project.config.params import load_params

        path = Path(load_params().data.feedback) / EXPORTED
    print(f"{path}: {export(_open(options), path, options.since, options.until):,} shown items")


def _delete_user(options: argparse.Namespace) -> None:
    """Delete the user's answers, and say where copies may be."""
    print(f"{_open(options).delete_user(options.user_id):,} answers deleted")
    print("Exported files and data/processed may still hold them: docs/privacy.md says how to delete these")


def _prune(options: argparse.Namespace) -> None:
    """Delete what is older."""
    before = datetime.now(UTC) - options.older_than
    print(f"{_open(options).prune(before):,} answers before {before:%Y-%m-%d %H:%M} UTC deleted")
