"""The training flow: brings every DVC stage up to date, registers the checkpoint, and promotes it if it is better.

Run it with `python -m flows.train`. It uses the server of PREFECT_API_URL, or a temporary one.
"""

import argparse

from prefect import flow

from flows.pipeline import Outcome, bring_up_to_date, check_folder, run_and_print, run_name


@flow(name="train", flow_run_name=run_name("train"))
def train(stages: list[str] | None = None, force: list[str] | None = None) -> Outcome:
    """Bring every stage up to date with params.yaml and the present data, then register and promote.

    With `stages`, only these may run, and nothing is registered. Stages in `force` run even if nothing has changed, and
    train again.
    """
    return bring_up_to_date("train", stages, force)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m flows.train", description=train.description)
    parser.add_argument("--stages", nargs="+", metavar="STAGE", help="run only these stages, and register nothing")
    text = "run these stages even if nothing has changed, and train again"
    parser.add_argument("--force", nargs="+", metavar="STAGE", help=text)
    options = parser.parse_args()
    given = options.stages, options.force
    run_and_print("train", lambda: train(*given), lambda: check_folder(*given))
