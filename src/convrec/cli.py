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
from convrec.training.launch import end_processes, is_main_process, launch_command

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
    command = launch_command(stage, getattr(params, stage))
    if command is not None:
        os.execv(command[0], command)
    _set_up()
    if not is_main_process():
        from convrec.tracking import SilentRun

        importlib.import_module(f"convrec.stages.{stage}").run(params, Paths(), SilentRun())
        end_processes()
        return
    from convrec.tracking import stage_run

    own = getattr(params, stage).model_dump()
    paths = Paths()
    tags = {"profile": params.common.profile, "base_model": params.base_model.name}
    with stage_run(stage, {"common": params.common.model_dump(), stage: own}, tags, paths.run_id(stage)) as record:
        importlib.import_module(f"convrec.stages.{stage}").run(params, paths, record)
        end_processes()


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
    comparison = commands.add_parser("compare", help="train algorithms from the same SFT model, over seeds")
    comparison.add_argument(
        "--algorithms",
        default="rank_grpo:exp_inf,rank_grpo:log,grpo,gspo",
        metavar="NAMES",
        help="separated by commas: rank_grpo:RETURNS (exp_inf, log, exp:GAMMA), grpo, gspo, dr_grpo, dapo",
    )
    comparison.add_argument("--seeds", type=int, default=3, help="runs of each, from common.seed on")
    comparison.add_argument("--steps", type=int, help="steps of each run; rank_grpo.num_steps where it is not given")
    commands.add_parser("results", help="print the results table of the last evaluation")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; mistakes of the user end with one message and status 2."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "profile":
            print(apply_profile(options.name, options.set))
        elif options.command == "compare":
            if options.seeds < 1:
                raise InputError(f"--seeds {options.seeds}: give 1 or more")
            _set_up()
            from convrec.compare import compare

            page = compare(load_params(), Paths(), options.algorithms.split(","), options.seeds, options.steps)
            print(f"Curves: {page}")
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
