"""The experiment flow: reads the online experiment, and ends it once the challenger is significantly worse.

Run it with `python -m flows.experiment`, or `convrec experiment status --stop-if-worse` without Prefect.
"""

import argparse

from prefect import flow
from rich.console import Console

from flows.pipeline import run_name, run_or_exit
from tasks.experiment import watch_experiment


@flow(name="experiment", flow_run_name=run_name("experiment"))
def experiment(feedback: str | None = None) -> str:
    """Return the result of the running experiment in one line; it ends if the challenger is worse.

    `feedback` is the URL of the feedback database (default: CONVREC_FEEDBACK_URL).
    """
    return watch_experiment(feedback)


def _check() -> None:
    import mlflow

    from convrec.registry.experiment import read_experiment
    from convrec.registry.tracking import connect

    connect()
    read_experiment(mlflow.MlflowClient())


def main() -> None:
    """Run the flow from the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.experiment", description=experiment.description)
    parser.add_argument("--feedback", metavar="URL", help="feedback database (default: CONVREC_FEEDBACK_URL)")
    options = parser.parse_args()
    message = run_or_exit("experiment", lambda: experiment(options.feedback), _check)
    Console(highlight=False, soft_wrap=True).print(message)


if __name__ == "__main__":
    main()
