"""`convrec evaluate --model | --checkpoints`, `convrec score`, `convrec results`: figures of lists."""

import argparse
import json
import logging
import re
from pathlib import Path
from typing import Any

from convrec.pipeline.commands import add_command, whole_number
from convrec.project.config.params import load_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths

SPLITS = ("train", "validation", "test")
MAX_RANKS, MAX_CUTOFFS = 1000, 100


def add(commands: Any) -> None:
    """Add `convrec evaluate`, `convrec results` and `convrec score`."""
    command = add_command(
        commands,
        "evaluate",
        _evaluate,
        "score any model, or the checkpoints of a training",
        "convrec evaluate --model models:/convrec-recommender@champion --split test",
        "docs/evaluation.md",
    )
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="score a Hugging Face folder or name, or a registry version (models:/NAME@ALIAS); repeatable",
    )
    what.add_argument("--checkpoints", metavar="STAGES", help="score the saved checkpoints of sft, rank_grpo, or both")
    command.add_argument(
        "--every",
        type=whole_number(0),
        metavar="STEPS",
        help="with --checkpoints: only those at multiples of this step",
    )
    command.add_argument("--split", choices=SPLITS, help="default: test with --model, validation with --checkpoints")
    command.add_argument(
        "--max-prompts",
        type=whole_number(0),
        metavar="N",
        help="use only the first N prompts; overrides evaluate.max_prompts",
    )
    command.add_argument("--engine", choices=("transformers", "vllm"), help="for evaluate.engine")
    command.add_argument("--constrained", action="store_true", help="with --model: lists contain only catalog items")
    command.add_argument(
        "--json", action="store_true", help="print JSON: one object per model, or one for all checkpoints"
    )
    command = add_command(
        commands, "results", _results, "print the results table of the last evaluation", "convrec results"
    )
    command.add_argument(
        "--published", action="store_true", help="beside the published figures of the profile (docs/reproduce.md)"
    )
    text = "score the lists of any system against their ground truth"
    command = add_command(
        commands, "score", _score, text, "convrec score --predictions lists.jsonl", "docs/evaluation.md"
    )
    command.add_argument(
        "--predictions",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines of {response or items, groundtruth, seen_titles?, prompt_id?, conversation_id?, user_id?}",
    )
    catalog = "CSV, JSON lines, Parquet or pickle; default: the project's catalog"
    command.add_argument("--catalog", type=Path, default=Paths().catalog, help=catalog)
    column = "catalog column that is added to each item's line, as in Hello - Adele (2015)"
    command.add_argument("--line-column", metavar="COLUMN", help=column)
    protocols = (
        "evaluation drops seen and unknown lines and moves the others up; reward keeps every line at its rank; "
        "published scores as the authors' code (docs/reproduce.md)"
    )
    choices = ("evaluation", "reward", "published")
    command.add_argument("--protocol", choices=choices, default="evaluation", help=protocols)
    command.add_argument(
        "--cutoffs", metavar="K,...", help="values of K in Recall@K and others; default: 5,10,15,20 up to N, or N"
    )
    ranks = "number of ranks N, %(type)s; default: %(default)s"
    command.add_argument("--list-length", type=whole_number(1, MAX_RANKS), default=20, metavar="N", help=ranks)
    tolerance = "maximum difference of a title's year, %(type)s; default: %(default)s"
    command.add_argument("--year-tolerance", type=whole_number(0, 1000), default=2, metavar="YEARS", help=tolerance)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def _evaluate(options: argparse.Namespace) -> None:
    if options.every is not None and (options.every < 1 or options.checkpoints is None):
        raise InputError(f"--every {options.every}: give 1 or more, and --checkpoints")
    if options.constrained and not options.model:
        raise InputError("--constrained needs --model; checkpoints are scored as in training")
    from convrec.pipeline import evaluate_models

    params = evaluate_models.with_options(load_params(), options.max_prompts, options.engine)
    if options.model:
        results = evaluate_models.evaluate_models(
            params, Paths(), options.model, options.split or "test", options.constrained
        )
        if not options.json:
            evaluate_models.print_evaluations(results)
    else:
        stages = options.checkpoints.split(",")
        split = options.split or "validation"
        results = [evaluate_models.evaluate_checkpoints(params, Paths(), stages, options.every, split)]
        if not options.json:
            evaluate_models.print_checkpoints(results[0])
    for result in results if options.json else ():
        print(json.dumps(result, ensure_ascii=False))


def _results(options: argparse.Namespace) -> None:
    if options.published:
        from convrec.pipeline.published_table import print_published

        print_published(load_params(), Paths())
        return
    from convrec.evaluation.table import print_results

    print_results(Paths())


def _score(options: argparse.Namespace) -> None:
    given = options.cutoffs.split(",") if options.cutoffs is not None else []
    if not all(re.fullmatch("[0-9]{1,9}", cutoff) for cutoff in given):
        raise InputError(f"--cutoffs {options.cutoffs:.40}: give integers separated by commas, for instance 5,10")
    cutoffs = sorted({int(cutoff) for cutoff in given})
    if len(cutoffs) > MAX_CUTOFFS:
        raise InputError(f"--cutoffs: {len(cutoffs):,} numbers; give {MAX_CUTOFFS} at most")
    cutoffs = cutoffs or [k for k in (5, 10, 15, 20) if k <= options.list_length] or [options.list_length]
    if cutoffs[0] < 1 or cutoffs[-1] > options.list_length:
        raise InputError(
            f"--cutoffs {','.join(given):.40}: give numbers from 1 to --list-length {options.list_length}, or raise it"
        )
    if not options.predictions.is_file():
        raise InputError(f"--predictions {options.predictions}: no such file, or a folder; name a JSON-lines file")
    from convrec.data.catalog_files import open_catalog
    from convrec.evaluation.predictions import ScoringSettings, print_scores, score_predictions

    settings = ScoringSettings(
        cutoffs, options.list_length, options.protocol, options.year_tolerance, options.line_column
    )
    catalog, summary = open_catalog(options.catalog, options.line_column)
    logging.getLogger("convrec.score").info("%s", summary)
    scores = score_predictions(options.predictions, catalog, settings)
    if options.json:
        print(json.dumps(scores.to_json()))
    else:
        print_scores(scores, settings)
