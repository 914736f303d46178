"""`convrec parse` and `convrec remap`: a language model's answers, read, and grounded in a catalog."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from convrec.pipeline.commands import add_command, whole_number
from convrec.project.errors import InputError
from convrec.project.paths import Paths


def add(commands: Any) -> None:
    """Add the commands."""
    text = "show the items parsed from a language model's answers, and the dropped lines"
    parse = add_command(commands, "parse", _parse, text, "convrec parse --responses answers.jsonl")
    text = "ground a language model's answers in a catalog; write items and scores"
    remap = add_command(commands, "remap", _remap, text, "convrec remap --responses answers.jsonl --out lists.jsonl")
    for command in (parse, remap):
        command.add_argument(
            "--responses", type=Path, required=True, help="JSON lines of {conversation, response, seen?}"
        )
        command.add_argument("--catalog", type=Path, default=Paths().catalog, help="CSV, JSON lines, Parquet or pickle")
        command.add_argument(
            "--min-ratio", type=float, default=85.0, help="minimum ratio of a fuzzy title match with a matching year"
        )
        command.add_argument("--min-ratio-without-year", type=float, default=97.0, help="minimum ratio without a year")
    parse.add_argument("--out", type=Path, help="also write the result as JSON lines")
    remap.add_argument(
        "--out", type=Path, required=True, help="output: the same rows with `items` (rank, title, year, score, source)"
    )
    remap.add_argument(
        "--top", type=whole_number(1, 100_000), default=20, help="items per list, %(type)s; default: %(default)s"
    )
    remap.add_argument("--embedder", default="tfidf", help="tfidf, or the name of a sentence-transformers model")
    remap.add_argument("--conversation-weight", type=float, default=1.0, help="lambda")


def _grounding(options: argparse.Namespace) -> tuple[float, float]:
    """Return the minimum ratios of a match with and without a year."""
    for name in ("min_ratio", "min_ratio_without_year"):
        if not 0 < getattr(options, name) <= 100:
            raise InputError(f"--{name.replace('_', '-')} {getattr(options, name)}: give a number up to 100")
    return options.min_ratio, options.min_ratio_without_year


def _parse(options: argparse.Namespace) -> None:
    """Run `parse`; a reader that stops early, such as `head`, is no error."""
    grounding = _grounding(options)
    from convrec.demonstrations.responses import print_parsed

    try:
        for line in print_parsed(options.responses, options.catalog, grounding, options.out):
            print(line)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _remap(options: argparse.Namespace) -> None:
    grounding = _grounding(options)
    if not 0 <= options.conversation_weight < float("inf"):
        raise InputError(f"--conversation-weight {options.conversation_weight}: give a number from 0")
    from convrec.demonstrations.responses import remap_responses

    print(
        remap_responses(
            options.responses,
            options.catalog,
            options.out,
            top=options.top,
            embedder=options.embedder,
            conversation_weight=options.conversation_weight,
            grounding=grounding,
        )
    )
