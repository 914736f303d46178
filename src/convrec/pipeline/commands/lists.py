"""`convrec evaluate`, `score` and `results`: figures of lists."""

import json
import logging
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import MEASURE, AsJson, NonNegativeInt, PositiveInt, Whole, app, project
from convrec.project.errors import InputError
from convrec.project.paths import Paths

_CATALOG = Paths().catalog


@app.command(group=MEASURE)
def evaluate(
    *,
    model: list[str] | None = None,
    checkpoints: str | None = None,
    every: PositiveInt | None = None,
    split: Literal["train", "validation", "test"] | None = None,
    max_prompts: NonNegativeInt | None = None,
    engine: Literal["transformers", "vllm"] | None = None,
    free: bool = False,
    as_json: AsJson = False,
) -> None:
    """Score any model, or the checkpoints of a training (docs/evaluation.md).

    Example: convrec evaluate --model models:/convrec-movies@champion --split test

    Args:
        model: A Hugging Face folder or name, a checkpoint, or a registry version (models:/NAME@ALIAS); repeatable.
        checkpoints: Score the saved checkpoints of sft, rank_grpo, or both, separated by a comma.
        every: With --checkpoints: only those at multiples of this step, the last one and the chosen one.
        split: Default: test with --model, validation with --checkpoints.
        max_prompts: Use at most N prompts, one of each person first; overrides evaluate.max_prompts.
        engine: Overrides evaluate.engine.
        free: With --model: lists without the catalog constraint and guidance, which are never served.
    """
    if bool(model) == bool(checkpoints) or (model and every) or (checkpoints and free):
        raise InputError("give --model, with or without --free, or --checkpoints, with or without --every")
    from convrec.pipeline import evaluate_models as module
    from convrec.pipeline.memory import with_settings

    given = {"evaluate.max_prompts": max_prompts, "evaluate.engine": engine}
    params, paths = project()
    params = with_settings(params, {k: v for k, v in given.items() if v is not None}, "convrec evaluate")
    if checkpoints:
        results = [module.evaluate_checkpoints(params, paths, checkpoints.split(","), every, split or "validation")]
    else:
        results = module.evaluate_models(params, paths, model or [], split or "test", free)
    if as_json:
        print("\n".join(json.dumps(result, ensure_ascii=False) for result in results))
    elif checkpoints:
        module.print_checkpoints(results[0])
    else:
        module.print_evaluations(results)


@app.command(group=MEASURE)
def results(*, published: bool = False) -> None:
    """Print the results table of the last evaluation.

    Args:
        published: Beside the published figures of the profile (docs/reproduce.md).
    """
    if published:
        from convrec.pipeline.published_table import print_published

        print_published(*project())
        return
    from convrec.evaluation.table import print_results

    print_results(Paths())


@app.command(group=MEASURE)
def score(
    *,
    predictions: Path,
    catalog: Path = _CATALOG,
    line_column: str | None = None,
    protocol: Literal["evaluation", "reward"] = "evaluation",
    cutoffs: str | None = None,
    list_length: Annotated[Whole, Parameter(validator=Number(gte=1, lte=1000))] = 20,
    year_tolerance: Annotated[Whole, Parameter(validator=Number(gte=0, lte=1000))] = 2,
    as_json: AsJson = False,
) -> None:
    """Score the lists of any system against their ground truth (docs/evaluation.md).

    Example: convrec score --predictions lists.jsonl

    Args:
        predictions: JSON lines of {response or items, groundtruth, seen_titles?, prompt_id?, conversation_id?,
            user_id?}.
        catalog: CSV, JSON lines, Parquet or pickle.
        line_column: Catalog column that is added to each item's line, as in Hello - Adele (2015).
        protocol: `evaluation` drops seen and unknown lines and moves the others up; `reward` keeps every line at its
            rank.
        cutoffs: Values of K in Recall@K and others, separated by commas; default: 5,10,15,20 up to N, or N.
        list_length: Number of ranks N.
        year_tolerance: Maximum difference of a title's year.
    """
    chosen = _cutoffs(cutoffs, list_length)
    if not predictions.is_file():
        raise InputError(f"--predictions {predictions}: no such file, or a folder; name a JSON-lines file")
    from convrec.data.catalog_files import open_catalog
    from convrec.evaluation.predictions import ScoringSettings, print_scores, score_predictions

    settings = ScoringSettings(chosen, list_length, protocol, year_tolerance, line_column)
    items, summary = open_catalog(catalog, line_column)
    logging.getLogger("convrec.score").info("%s", summary)
    scores = score_predictions(predictions, items, settings)
    if as_json:
        print(json.dumps(scores.to_json()))
    else:
        print_scores(scores, settings)


def _cutoffs(text: str | None, list_length: int) -> list[int]:
    """Return the cutoffs of an option, or the usual ones up to the length of the lists."""
    if text is None:
        return [k for k in (5, 10, 15, 20) if k <= list_length] or [list_length]
    given = text.split(",")
    if not all(cutoff.isascii() and cutoff.isdigit() and len(cutoff) < 10 for cutoff in given):
        raise InputError(f"--cutoffs {text:.40}: give integers separated by commas, for instance 5,10")
    cutoffs = sorted({int(cutoff) for cutoff in given})
    if cutoffs[0] < 1 or cutoffs[-1] > list_length:
        raise InputError(f"--cutoffs {text:.40}: give numbers from 1 to --list-length {list_length}, or raise it")
    return cutoffs
