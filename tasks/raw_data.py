"""Tasks for the raw data of a run: update, pull, set the test period, and compare with the version before."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from dvc.repo import Repo
from prefect import task
from prefect.logging import get_run_logger

from convrec.project.config.params import load_params
from convrec.project.config.period import Period
from convrec.project.config.profiles import change_params
from convrec.project.errors import EXIT_BAD_INPUT, EXIT_UNAVAILABLE, InputError, Unavailable, outside_cause
from tasks.artifacts import SHOWN
from tasks.command import RETRIES, BadInput, StageFailed, StageInterrupted


def _dvc(*arguments: str) -> None:
    """Run a DVC command.

    Raises `StageInterrupted` with its last output if a remote is down or another DVC process uses the same files, and
    `BadInput` for other errors.
    """
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        message = f"dvc {' '.join(arguments)} failed: {' '.join((result.stderr or result.stdout).split())[-600:]}"
        is_away = isinstance(outside_cause(RuntimeError(message)), Unavailable)
        raise StageInterrupted(message, EXIT_UNAVAILABLE) if is_away else BadInput(message, EXIT_BAD_INPUT)


def _tracked() -> tuple[list[str], list[str]]:
    """Return the .dvc files of imports, and all others."""
    with Repo(".") as repo:
        stages = [stage for stage in repo.index.stages if stage.is_data_source]
        imports = [stage.relpath for stage in stages if stage.is_import]
        others = [stage.relpath for stage in stages if not stage.is_import]
    return sorted(imports), sorted(others)


def _has_remote() -> bool:
    with Repo(".") as repo:
        return bool(repo.config["core"].get("remote"))


@task(task_run_name="update imported data", **RETRIES)
def update_imports() -> None:
    """Update imported data (`dvc import`, `dvc import-url`) from their sources.

    Raises `BadInput` if DVC cannot get them.
    """
    logger = get_run_logger()
    imports, others = _tracked()
    if not imports and not others:
        logger.info("DVC tracks no raw data: the present files are used (run `dvc add FOLDER` to version them)")
    for name in imports:
        logger.info("updating %s", name)
        _dvc("update", name)


@task(task_run_name="export recorded feedback", **RETRIES)
def export_feedback() -> None:
    """Write the recorded feedback to the file that the source `feedback` reads, if `data.source` names it.

    Raises `StageInterrupted` if the database is away, and `BadInput` if it cannot be used or nothing was recorded.
    """
    data = load_params().data
    if "feedback" not in data.sources:
        return
    from convrec.service.feedback import open_store
    from convrec.service.feedback.store import EXPORTED, export

    path = Path(data.feedback) / EXPORTED
    try:
        number = export(open_store(Path()), path)
    except Unavailable as error:
        raise StageInterrupted(str(error), EXIT_UNAVAILABLE) from None
    except InputError as error:
        raise BadInput(str(error), EXIT_BAD_INPUT) from None
    get_run_logger().info("%s: %s shown items of recorded feedback", path, f"{number:,}", extra=SHOWN)


@task(task_run_name="pull raw data", **RETRIES)
def pull_raw_data() -> None:
    """Bring the raw data of .dvc files to the workspace, from the cache or the default remote.

    Raises `BadInput` if they are in neither.
    """
    logger = get_run_logger()
    imports, others = _tracked()
    missing = [name for name in [*imports, *others] if not Path(name).with_suffix("").exists()]
    wanted = sorted({*missing, *others})
    if _has_remote() and wanted:
        logger.info("pulling %s", ", ".join(wanted))
        _dvc("pull", *wanted)
    elif missing:
        _dvc("checkout", *missing)


@task(task_run_name="push data and models")
def push_outputs() -> None:
    """Push the run's outputs to the default remote, if there is one, so that any clone can get them.

    If the remote is down, a warning is logged and the run does not fail; run `dvc push` later.
    """
    logger = get_run_logger()
    if not _has_remote():
        logger.info("no default DVC remote: the outputs stay in this workspace's cache")
        return
    try:
        _dvc("push")
    except StageFailed as error:
        logger.warning("%s; run `dvc push` later", error)


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
def set_test_period(period: str) -> None:
    """Change params.yaml to test on a period, and to validate on the period before (see `periods`).

    Raises `InputError` for an invalid period, or if the parameters do not allow it.
    """
    validation, test = periods(period)
    changed = change_params([f"data.validation_period={validation}", f"data.test_period={test}"])
    get_run_logger().info(changed, extra=SHOWN)


@task(task_run_name="changes since {since}")
def record_changes(since: str, parent_run: str) -> None:
    """Log the difference between the data of a git revision and of the workspace, and record it in the parent run.

    If the revision has no data, as before the first run, this is logged and nothing is recorded.
    """
    from convrec.data.revisions.diff import diff
    from convrec.registry.tracking import log_text

    logger = get_run_logger()
    try:
        found = diff(since, "workspace")
    except InputError as error:
        logger.info("nothing to compare the data with: %s", error, extra=SHOWN)
        return
    for line in found.to_text().splitlines():
        logger.info(line, extra=SHOWN)
    log_text(parent_run, found.to_text(limit=10_000), "changes/diff.txt")
    log_text(parent_run, found.to_json(), "changes/diff.json")
