"""The commands of `convrec`, a module a group: its options by `add`, and what its commands do.

What a command needs is imported when it runs, so that `convrec --help` and a mistake are answered at once.
"""

import argparse
import re
from collections.abc import Callable
from typing import Any

LARGEST = 10**9  # of numbers that nothing else bounds
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
Run = Callable[[argparse.Namespace], int | None]


def add_command(
    commands: Any, name: str, run: Run | None, text: str, example: str, page: str | None = None
) -> argparse.ArgumentParser:
    """Add a command that does `run`, or None where its subcommands do; return its parser.

    `text` says what it does, and begins with a small letter; `example` is a call of it; `page` is that of docs/ which
    tells more. What `run` returns is the exit status, where the command has more of them than success and an error.
    """
    more = f" ({page})" if page else ""
    command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}{more}.")
    command.epilog = f"example: {example.replace('%', '%%')}"
    if run is not None:
        command.set_defaults(run=run)
    return command


def whole_number(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """Return the `type` of an option that is a whole number within bounds; its help names them by `%(type)s`."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text:.40}: give a whole number, {read.__name__}")
        return int(text)

    read.__name__ = f"{least} to {most:,}"
    return read


def share(text: str) -> float:
    """Return the share that an option gives, above 0 and at most 1: its `type`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text:.40}: give a number above 0 and at most 1, such as 0.5")
    return value
