"""Tasks for the raw data of a run: update, pull, set the test period, and compare with the version before."""

import subprocess
import sys
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from dvc.repo import Repo
from prefect import task
from prefect.logging import get_run_logger

from convrec.data.revisions import DataDiff, diff
from convrec.data.sources.feedback import FILE
from convrec.project.atomic import restored_on_error
from convrec.project.config.params import load_params
from convrec.project.config.period import Period
from convrec.project.config.profiles import change_params
from convrec.project.errors import InputError, Unavailable, outside_cause
from convrec.service.feedback import open_store
from convrec.service.feedback.store import export
from tasks.command import RETRIES, SHOWN


def _dvc(*arguments: str) -> None:
    """Run a DVC command.

    Raises `Unavailable` if a remote is down or another DVC process uses the same files, and `InputError` for other
    errors, with its last output.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        message = f"dvc {' '.join(arguments)} failed: {' '.join((result.stderr or result.stdout).split())[-600:]}"
        is_away = isinstance(outside_cause(RuntimeError(message)), Unavailable)
        raise (Unavailable if is_away else InputError)(message)


def _tracked() -> tuple[list[str], list[str], bool]:
    """Return the .dvc files of imports, and all others, and whether there is a default remote."""
    with Repo(".") as repo:
        stages = [stage for stage in repo.index.stages if stage.is_data_source]
        imports = sorted(stage.relpath for stage in stages if stage.is_import)
        others = sorted(stage.relpath for stage in stages if not stage.is_import)
        return imports, others, bool(repo.config["core"].get("remote"))


@task(task_run_name="update imported data", **RETRIES)
def update_imports() -> None:
    """Update imported data (`dvc import`, `dvc import-url`) from their sources."""
    if imports := _tracked()[0]:
        with ExitStack() as files:
            for name in imports:
                files.enter_context(restored_on_error(Path(name)))
            _dvc("update", *imports)


@task(task_run_name="export recorded feedback", **RETRIES)
def export_feedback() -> None:
    """Write the recorded feedback to the file that the source `feedback` reads, if `data.source` names it.

    Raises `Unavailable` if the database is away, and `InputError` if it cannot be used or nothing was recorded.
    """
    if "feedback" not in load_params().data.sources:
        return
    with closing(open_store()) as store:
        number = export(store, FILE)
    get_run_logger().info("%s: %s shown items of recorded feedback", FILE, f"{number:,}", extra=SHOWN)


@task(task_run_name="pull raw data", **RETRIES)
def pull_raw_data() -> None:
    """Bring the raw data of .dvc files to the workspace, from the cache or the default remote."""
    imports, others, has_remote = _tracked()
    missing = [name for name in [*imports, *others] if not Path(name).with_suffix("").exists()]
    wanted = sorted({*missing, *others}) if has_remote else missing
    if wanted:
        _dvc("pull" if has_remote else "checkout", *wanted)


@task(task_run_name="push data and models")
def push_outputs() -> None:
    """Push the run's outputs to the default remote, if there is one, so that any clone can get them.

    If the remote is down, a warning is logged and the run does not fail; run `dvc push` later.
    """
    if not _tracked()[2]:
        get_run_logger().info("no default DVC remote: the outputs stay in this workspace's cache")
        return
    try:
        _dvc("push")
    except (InputError, Unavailable) as error:
        get_run_logger().warning("%s; run `dvc push` later", error)


def periods(test_period: str, today: date | None = None) -> tuple[Period, Period]:
    """Return the validation period and the test period for a test period.

    It is a month or a span of days (see `Period.parse`), `last-month` for the last calendar month, or
    `last-week` for the 7 days before `today` (default: the day in UTC). Validation is the period before, as long as the
    test period. Raises `InputError` for anything else.
    """
    today = today or datetime.now(UTC).date()
    if test_period == "last-month":
        test = Period.of_month(today).before()
    elif test_period == "last-week":
        test = Period(today - timedelta(days=7), today)
    else:
        try:
            test = Period.parse(test_period)
        except ValueError as error:
            raise InputError(f"test period {error}, or last-month, or last-week") from None
    return test.before(), test


@task(task_run_name="test period {period}")
def set_test_period(period: str) -> str | None:
    """Change params.yaml to test on a period, and to validate on the period before (see `periods`).

    Returns what `undo_change` takes. Raises `InputError` for an invalid period, or if the parameters do not allow it.
    """
    validation, test = periods(period)
    settings = [f"data.validation_period={validation}", f"data.test_period={test}"]
    changed = change_params(settings)
    get_run_logger().info("params.yaml has %s", ", ".join(settings), extra=SHOWN)
    return changed


@task(task_run_name="changes since {since}")
def show_changes(since: str) -> DataDiff | None:
    """Log and return the difference between the data of a git revision and of the workspace.

    If the revision has no data, as before the first run, this is logged, and None is returned.
    """
    logger = get_run_logger()
    try:
        found = diff(since, "workspace")
    except InputError as error:
        logger.info("nothing to compare the data with: %s", error, extra=SHOWN)
        return None
    for line in found.to_text().splitlines():
        logger.info(line, extra=SHOWN)
    return found
