"""`convrec COMMAND`: the stages of the pipeline, and what goes with them (`commands/`)."""

import argparse
import logging
import os
import sys

from convrec.commands import data, evaluate, experiments, recommender, registry, responses, stage, tracking, workspace
from convrec.errors import exit_status, outside_cause
from convrec.training.launch import end_with_parent, is_supervised


def _set_up() -> None:
    """Set logging, and quiet the libraries: the only place where global state is set. Seeds are passed on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("convrec").setLevel(logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # of every try at a server that is away; the outcome is told
    for name, value in {
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",  # commands say how far they are on their own
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }.items():
        os.environ.setdefault(name, value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convrec", description="Train and test LLM conversational recommenders.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        stage.add,
        experiments.add,
        responses.add,
        data.add_fetch_model,
        evaluate.add_score,
        evaluate.add_results,
        recommender.add,
        workspace.add,
        registry.add,
        tracking.add,
    ):
        add(commands)
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; mistakes of the user end with one message and status 2, what may be back later with 75."""
    options = _parser().parse_args(arguments)
    if is_supervised():
        end_with_parent()
    _set_up()
    try:
        status = options.run(options)
    except Exception as error:
        told = error if exit_status(error) else outside_cause(error)
        if told is None:
            raise
        print(f"convrec {options.command}: {told}", file=sys.stderr)
        sys.exit(exit_status(told))
    if status is not None:
        sys.exit(status)


if __name__ == "__main__":
    main()
