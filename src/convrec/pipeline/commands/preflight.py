"""`convrec preflight`: check what a run needs before it starts."""

import argparse
from typing import Any

from convrec.pipeline.commands import add_command
from convrec.project.config.params import load_params
from convrec.project.paths import Paths


def add(commands: Any) -> None:
    """Add the command."""
    text = "check what a run needs, and run its most expensive steps on throw-away weights"
    command = add_command(commands, "preflight", _preflight, text, "convrec preflight --price-per-hour 2.5")
    command.add_argument("--fast", action="store_true", help="only the checks that take no work")
    command.add_argument(
        "--memory",
        type=_positive,
        metavar="GIB",
        help="limit of a stage's memory in GiB; default: what is free now",
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
    from convrec.pipeline.preflight import preflight

    preflight(load_params(), Paths(), fast=options.fast, memory=options.memory, price=options.price_per_hour)
