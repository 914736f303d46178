"""The rollback flow: makes the previous champion the champion again.

Run it with `python -m flows.rollback`, or `convrec rollback` without Prefect.
"""

import argparse

from prefect import flow
from rich.console import Console

from convrec.project.paths import Paths
from flows.pipeline import run_name, run_or_exit
from tasks.promotion import roll_back


@flow(name="rollback", flow_run_name=run_name("rollback"))
def rollback(to: str | None = None, by: str | None = None, reason: str = "") -> str:
    """Make the previous champion, or the earlier one `to`, the champion again; return a message."""
    return roll_back(to, by, reason)


def _check(to: str | None) -> None:
    from convrec.registry.promote import check_rollback

    check_rollback(Paths(), to)


def main() -> None:
    """Run the flow from the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.rollback", description=rollback.description)
    parser.add_argument("--to", metavar="N", help="an earlier champion (default: the previous one)")
    parser.add_argument("--by", metavar="NAME", help="who decides (default: the user's name)")
    parser.add_argument("--reason", default="", metavar="TEXT", help="recorded in the log and on the version")
    options = parser.parse_args()
    given = options.to, options.by, options.reason
    message = run_or_exit("rollback", lambda: rollback(*given), lambda: _check(options.to))
    Console(highlight=False, soft_wrap=True).print(message)


if __name__ == "__main__":
    main()
