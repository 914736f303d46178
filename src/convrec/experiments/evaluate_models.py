"""`convrec evaluate --model`: scores the lists of any model on the current data, without training."""

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from convrec.config.params import Params, parse_params
from convrec.data.catalog import Catalog
from convrec.data.conversations import read_prompts, write_rows
from convrec.evaluation.comparison import mean_interval
from convrec.evaluation.model_scores import ScoredLists, score_model
from convrec.evaluation.scoring import mean_scores
from convrec.evaluation.systems import metric_label
from convrec.files.results import write_json
from convrec.generation.lists import EngineOptions, ListSettings
from convrec.models.folders import check_model, find_model
from convrec.paths import Paths
from convrec.registry.versions import download_version
from convrec.tracking import Run, data_tags, file_md5, stage_run

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]


def answers(
    model: Path, settings: ListSettings, rows: Rows, params: Params, paths: Paths, constrained: bool = False
) -> ScoredLists:
    """Return a model's greedy lists for the prompts of these rows, and their scores."""
    engine, catalog = EngineOptions.on_this_machine(**params.engine_options()), Catalog.read(paths.catalog)
    size, cutoffs = params.common.list_length, params.common.cutoffs
    return score_model(model, settings, engine, rows, catalog, cutoffs, size, constrained)


def interval_metrics(scores: pd.DataFrame, params: Params) -> dict[str, dict[str, float]]:
    """Return mean, low and high (95 % interval over persons) of every score."""
    samples, seed = params.evaluate.bootstrap_samples, params.common.seed
    return {name: mean_interval(scores, name, samples, seed)._asdict() for name in mean_scores(scores)}


def flat_metrics(metrics: dict[str, dict[str, float]], prefix: str = "") -> dict[str, float]:
    """Return each metric's mean under its name, and its interval as NAME_low and NAME_high."""
    return {
        f"{prefix}{name}{'' if end == 'mean' else f'_{end}'}": value
        for name, interval in metrics.items()
        for end, value in interval.items()
        if end != "n"
    }


def with_options(params: Params, max_prompts: int | None, engine: str | None) -> Params:
    """Return the parameters with `evaluate.max_prompts` and `evaluate.engine` replaced by those of the command line."""
    raw = params.model_dump()
    given = {"max_prompts": max_prompts, "engine": engine}
    raw["evaluate"] |= {key: value for key, value in given.items() if value is not None}
    return parse_params(raw, "convrec evaluate")


def _locate(name: str, params: Params) -> tuple[Path, ListSettings]:
    """Return a model's folder and its list settings; a registered version has its own settings."""
    if not name.startswith("models:/"):
        return find_model(name, "--model", params.base_model.trust_remote_code), ListSettings(**params.list_settings())
    version = download_version(name)
    check_model(version.checkpoint, f"--model {name}", params.base_model.trust_remote_code)
    return version.checkpoint, version.settings


def evaluate_models(
    params: Params, paths: Paths, names: Sequence[str], split: str, constrained: bool = False
) -> list[dict[str, Any]]:
    """Score models on a split; return for each its name, the numbers of rows and prompts, and metrics with intervals.

    A name is a folder, a model of the Hugging Face Hub (NAME or NAME@REVISION), or a registry version. If
    `constrained`, lists contain only catalog items. Lists, scores and metrics are written to `evaluations/NAME/`, and
    each model gets an MLflow run.

    Raises `InputError` before any generation if data, engine or one of the models is missing.
    """
    paths.require_split(split)
    EngineOptions.on_this_machine(**params.engine_options())
    found = {name: _locate(name, params) for name in dict.fromkeys(names)}
    return [_evaluate(name, *where, params, paths, split, constrained) for name, where in found.items()]


def _evaluate(
    name: str, folder: Path, settings: ListSettings, params: Params, paths: Paths, split: str, constrained: bool
) -> dict[str, Any]:
    rows, prompts = read_prompts(paths.split(split), params.evaluate.max_prompts)
    target = paths.evaluations / evaluation_name(name, split, params.evaluate.max_prompts, constrained)
    values = {"common": params.common.model_dump(), "evaluate": params.evaluate.model_dump(), "model": asdict(settings)}
    digests = " ".join(file_md5(path) for path in sorted(folder.glob("*.safetensors")))
    tags = {
        "profile": params.common.profile,
        "seed": str(params.common.seed),
        "stage": "evaluate",
        **data_tags(paths),
        "model": name,
        "split": split,
        "constrained": str(constrained).lower(),
        "checkpoint.md5": digests,
    }
    with stage_run(f"evaluate {name}", values, tags, target / "run.json") as record:
        record_data(record, paths, split)
        found = answers(folder, settings, rows, params, paths, constrained)
        metrics = interval_metrics(found.scores, params)
        result: dict[str, Any] = {"model": name, "split": split, "engine": params.evaluate.engine}
        result |= {"constrained": constrained, "run_id": record.run_id}
        result |= {"n_rows": len(rows), "n_prompts": len(prompts), "truncated_share": found.truncated_share}
        result |= {"metrics": metrics}
        frame = pd.DataFrame({"prompt_id": list(found.texts), "response": list(found.texts.values())})
        write_rows(frame, target / "lists.parquet")
        write_rows(found.scores, target / "scores.parquet")
        write_json(target / "evaluation.json", result)
        record.log_metrics(flat_metrics(metrics, f"{split}/") | {"n_rows": len(rows), "n_prompts": len(prompts)})
        for path in ("lists.parquet", "evaluation.json"):
            record.log_artifact(target / path)
    logger.info("%s: lists and scores are in %s", name, target)
    return result


def evaluation_name(model: str, split: str, max_prompts: int | None, constrained: bool = False) -> str:
    """Return the name of an evaluation's folder: model, split, and suffixes for `max_prompts` and `constrained`."""
    first = "" if max_prompts is None else f".first-{max_prompts}"
    first += ".constrained" if constrained else ""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', model.removeprefix('models:/')).strip('-.')}.{split}{first}"


def record_data(record: Run, paths: Paths, split: str) -> None:
    """Record the datasets of an evaluation."""
    record.log_dataset(paths.split(split), split)
    record.log_dataset(paths.catalog, "catalog")


def shown(interval: dict[str, float]) -> str:
    """Return a mean with its interval as text."""
    return f"{interval['mean']:.4f} [{interval['low']:.4f}, {interval['high']:.4f}]"


def print_evaluations(results: Sequence[dict[str, Any]]) -> None:
    """Print one row for each metric and one column for each model: the mean and its 95 % interval."""
    first = results[0]
    size = f"{first['n_rows']} rows, {first['n_prompts']} prompts, 95 % intervals"
    how = ", constrained" if first["constrained"] else ""
    title = f"{first['split'].capitalize()} split{how}: {size}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for result in results:
        table.add_column(result["model"], justify="right", overflow="fold")
    for metric in first["metrics"]:
        table.add_row(metric_label(metric), *(shown(result["metrics"][metric]) for result in results))
    Console(highlight=False, width=120).print(table)
