"""The refresh flow: fetches new data, tests on a new period, shows the changes, retrains, and promotes a better model.

Run it with `python -m flows.refresh --test-period 2022-12`; docs/monthly-refresh.md walks through two months.
"""

import argparse

from prefect import flow
from prefect.logging import get_run_logger

from convrec.data.revisions import find_commit
from convrec.project.config.profiles import undo_change
from convrec.registry.tracking import Run
from flows.pipeline import Outcome, bring_up_to_date, check_folder, refuse_early, run_and_print, run_name
from tasks.raw_data import export_feedback, periods, set_test_period, show_changes, update_imports


@flow(name="refresh", flow_run_name=run_name("refresh"))
def refresh(test_period: str | None = None, since: str = "HEAD") -> Outcome:
    """Bring the pipeline up to date with the newest raw data, and compare the result with the champion.

    Imports of raw data are updated first, recorded feedback is exported if `data.source` names it, and missing raw data
    are pulled from the default remote. With `test_period` (a month, a span of days, `last-month` or `last-week`),
    params.yaml is changed to test on that period and to validate on the one before. Changes of the data since the git
    revision `since` are logged and recorded. The champion is also scored on the new test period, so that promotion
    compares both on the same rows. If the run fails, params.yaml is restored.
    """
    refuse_early(lambda: _check(test_period, since))
    changed: str | None = None

    def take_in() -> None:
        nonlocal changed
        update_imports()
        export_feedback()
        if test_period is not None:
            changed = set_test_period(test_period)

    def compare(run: Run) -> None:
        if (found := show_changes(since)) is not None:
            run.log_text(found.to_text(limit=10_000), "changes/diff.txt")
            run.log_text(found.to_json(), "changes/diff.json")

    try:
        return bring_up_to_date("refresh", before=take_in, after_data=compare)
    except BaseException:
        if undo_change(changed):
            get_run_logger().warning("params.yaml has its earlier periods again; to retry, start this refresh again")
        raise


def _check(test_period: str | None, since: str) -> None:
    if test_period is not None:
        periods(test_period)
    if since != "HEAD":  # HEAD may be missing in a new repository; then there is nothing to compare
        find_commit(since)
    check_folder()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m flows.refresh", description=refresh.description)
    text = (
        "the new test period: a month (2022-12), a span of days (2022-12-08/2022-12-14), last-month or last-week; "
        "validation is the period before (default: keep params.yaml)"
    )
    parser.add_argument("--test-period", metavar="PERIOD", help=text)
    text = "git revision of the data to compare with (default: %(default)s)"
    parser.add_argument("--since", default="HEAD", metavar="REVISION", help=text)
    options = parser.parse_args()
    given = options.test_period, options.since
    run_and_print("refresh", lambda: refresh(*given), lambda: _check(*given))
