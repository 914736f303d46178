"""`convrec profile`, `reproduce`, `compare`, `ablate-demonstrations`: other parameters, and trainings compared."""

import argparse
from pathlib import Path
from typing import Any

from convrec.pipeline.commands import add_command, whole_number
from convrec.project.config.params import load_params
from convrec.project.config.profiles import apply_profile, profile_names
from convrec.project.paths import Paths


def add(commands: Any) -> None:
    """Add the commands."""
    profile = add_command(
        commands,
        "profile",
        _profile,
        "write params.yaml from a profile",
        "convrec profile redial --set data.path=../redial",
    )
    profile.add_argument("name", choices=profile_names() or None, help="name of a file in profiles/, without .yaml")
    profile.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a parameter, for instance data.path=../redial; repeatable",
    )
    again = add_command(
        commands,
        "reproduce",
        _reproduce,
        "fetch data and model of the published experiment, and write params.yaml",
        "convrec reproduce qwen2.5-0.5b --scale 0.05",
        "docs/reproduce.md",
    )
    again.add_argument("model", metavar="MODEL", help="qwen2.5-0.5b, llama-3.2-1b or llama-3.2-3b")
    again.add_argument("--data", type=Path, metavar="FOLDER", help="the published splits; default: fetch the raw dump")
    again.add_argument("--teacher", metavar="NAME", help="a chat model; default: item similarity, without calls")
    again.add_argument("--scale", type=float, default=1.0, help="share of the prompts and steps; default: 1")
    again.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a parameter; repeatable")
    comparison = add_command(
        commands,
        "compare",
        _compare,
        "train several algorithms from the same SFT model with several seeds, and compare them",
        "convrec compare --algorithms rank_grpo:exp_inf,grpo --seeds 3 --steps 80",
    )
    comparison.add_argument(
        "--algorithms",
        default="rank_grpo:exp_inf,rank_grpo:log,grpo,gspo",
        metavar="NAMES",
        help="separated by commas: rank_grpo:RETURNS or rank_grpo_public:RETURNS (exp_inf, log, exp:GAMMA), grpo, "
        "gspo, dr_grpo, dapo; dpo, sdpo, sprec",
    )
    runs = "number of seeds, from common.seed on, %(type)s; default: %(default)s"
    steps = "steps of each run, %(type)s; default: rank_grpo.max_steps"
    comparison.add_argument("--seeds", type=whole_number(1, 1000), default=3, help=runs)
    comparison.add_argument("--steps", type=whole_number(1), help=steps)
    text = "train SFT on the lists after each demonstration step, and compare the models"
    ablation = add_command(commands, "ablate-demonstrations", _ablate, text, "convrec ablate-demonstrations --seeds 3")
    ablation.add_argument("--seeds", type=whole_number(1, 1000), default=1, help=runs)


def _profile(options: argparse.Namespace) -> None:
    print(apply_profile(options.name, options.set))


def _reproduce(options: argparse.Namespace) -> None:
    from convrec.pipeline.reproduce import reproduce

    for line in reproduce(options.model, options.data, options.teacher, options.scale, options.set):
        print(line)


def _compare(options: argparse.Namespace) -> None:
    from convrec.pipeline.compare import compare_algorithms

    page = compare_algorithms(load_params(), Paths(), options.algorithms.split(","), options.seeds, options.steps)
    print(f"Curves: {page}")


def _ablate(options: argparse.Namespace) -> None:
    from convrec.pipeline.ablation import ablate

    print(f"As JSON: {ablate(load_params(), Paths(), options.seeds)}")
