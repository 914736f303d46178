"""`convrec preflight`: check what a run needs before it starts."""

import argparse
from typing import Any

from convrec.commands import add_command
from convrec.config.params import load_params, parse_params
from convrec.config.profiles import compose
from convrec.errors import InputError
from convrec.paths import Paths


def add(commands: Any) -> None:
    """Add the command."""
    text = "check what a run needs, and run its most expensive steps on throw-away weights"
    command = add_command(commands, "preflight", _preflight, text, "convrec preflight --price-per-hour 2.5")
    command.add_argument("--fast", action="store_true", help="only the checks that take no work")
    command.add_argument(
        "--profile", help="only estimate the memory of this profile's trainings, from shapes: no GPU, data or weights"
    )
    command.add_argument(
        "--memory",
        type=_positive,
        metavar="GIB",
        help="limit of a stage's memory in GiB; default: what is free now; with --profile: the memory of one GPU",
    )
    command.add_argument(
        "--price-per-hour", type=_positive, metavar="PRICE", help="price of a machine hour, for the cost"
    )


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


_positive.__name__ = "number above 0"  # in argparse's message


def _preflight(options: argparse.Namespace) -> None:
    if options.profile is not None:
        from convrec.experiments.plans import show_plans

        if options.fast or options.price_per_hour is not None:
            raise InputError("--profile estimates memory only; leave out --fast and --price-per-hour")
        show_plans(parse_params(compose(options.profile, []), f"profile {options.profile}"), Paths(), options.memory)
        return
    from convrec.experiments.preflight import preflight

    preflight(load_params(), Paths(), fast=options.fast, memory=options.memory, price=options.price_per_hour)
