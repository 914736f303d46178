"""The monthly flow: fetch the newest data, test on a new month, show what changed, retrain, promote what is better.

Run it with `python -m flows.refresh --test-month 2022-12`; docs/monthly-refresh.md walks through two months.
"""

import argparse

from prefect import flow

from flows.pipeline import Outcome, bring_up_to_date, check_folder, refuse_early, run_and_print, run_name
from tasks.raw_data import months, record_changes, set_test_month, update_imports

HEAD = "HEAD"


@flow(name="refresh", flow_run_name=run_name("refresh"))
def refresh(test_month: str | None = None, since: str = HEAD) -> Outcome:
    """Bring the pipeline up to date with the newest raw data, and compare the result with the champion.

    The raw data are what their .dvc files name: imports are updated first, and what the workspace lacks comes from the
    default remote. With `test_month` (`last` is the calendar's last one), params.yaml is changed to test on it, and to
    validate on the month before. What changed since the git revision `since` is logged and recorded. The champion
    answers the new test month, too, so that promotion compares both on the same rows.
    """

    refuse_early(lambda: _check(test_month, since))

    def take_in() -> None:
        update_imports()
        if test_month is not None:
            set_test_month(test_month)

    return bring_up_to_date("refresh", before=take_in, after_data=lambda parent_run: record_changes(since, parent_run))


def _check(test_month: str | None, since: str) -> None:
    from convrec.versions.load import find_commit

    if test_month is not None:
        months(test_month)
    if since != HEAD:  # which a repository without commits lacks; then there is nothing to compare
        find_commit(since)
    check_folder()


def main() -> None:
    """Run the flow from the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.refresh", description=refresh.description)
    parser.add_argument(
        "--test-month", metavar="YYYY-MM", help="the new month to test on, or last; as it is, if not given"
    )
    parser.add_argument(
        "--since", default=HEAD, metavar="REVISION", help="of the data that the new one is compared with"
    )
    options = parser.parse_args()
    given = options.test_month, options.since
    run_and_print("refresh", lambda: refresh(*given), lambda: _check(*given))


if __name__ == "__main__":
    main()
