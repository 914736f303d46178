"""`convrec STAGE`: run one stage of the pipeline, or manage profiles. Heavy imports wait until they are needed."""

import argparse
import importlib
import logging
import os
import sys
from pathlib import Path

from convrec.config import Params, load_params
from convrec.errors import InputError
from convrec.paths import Paths
from convrec.profiles import apply_profile, profile_names

STAGES = ("data", "demonstrations", "base_model", "sft", "rank_grpo", "evaluate", "report")
EXIT_BAD_INPUT = 2


def _set_up() -> None:
    """Set logging, and quiet the libraries: the only place where global state is set. Seeds are passed on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("convrec").setLevel(logging.INFO)
    for name, value in {
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",  # stages say how far they are on their own
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
    }.items():
        os.environ.setdefault(name, value)


def _run_stage(stage: str, params: Params) -> None:
    _set_up()
    from convrec.tracking import stage_run

    own = getattr(params, stage).model_dump()
    paths = Paths()
    tags = {"profile": params.common.profile, "base_model": params.base_model.name}
    with stage_run(stage, {"common": params.common.model_dump(), stage: own}, tags, paths.run_id(stage)) as record:
        importlib.import_module(f"convrec.stages.{stage}").run(params, paths, record)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="convrec", description="Train and test LLM conversational recommenders.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for stage in STAGES:
        help_text = f"run the stage `{stage}` with params.yaml (usually through `dvc repro`)"
        commands.add_parser(stage, help=help_text, description=help_text)
    profile = commands.add_parser("profile", help="make params.yaml from a profile")
    profile.add_argument("name", choices=profile_names(), help="a file of profiles/, without .yaml")
    profile.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a parameter, e.g. data.path=../redial",
    )
    commands.add_parser("results", help="print the results table of the last evaluation")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; mistakes of the user end with one message and status 2."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "profile":
            print(apply_profile(options.name, options.set))
        elif options.command == "results":
            from convrec.evaluation.table import print_results

            print_results(Paths())
        else:
            _run_stage(options.command, load_params(Path("params.yaml")))
    except InputError as error:
        print(f"convrec {options.command}: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()
