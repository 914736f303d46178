"""`convrec evaluate`: scores any models, or the kept checkpoints of the current trainings, without training."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from convrec.data.conversations import write_rows
from convrec.evaluation.evaluation import Evaluation, flat_metrics
from convrec.evaluation.headline import with_interval
from convrec.evaluation.metrics import metric_label
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import check_model, find_model, has_weights, model_files
from convrec.project.code import code_digest, code_files, fingerprint
from convrec.project.config.params import Params, parse_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json, write_plot
from convrec.project.table import TextTable
from convrec.registry.tracking import Run, data_tags, file_md5, stage_run
from convrec.registry.versions import download_version
from convrec.training.checkpoints import chosen_step, complete_checkpoints

logger = logging.getLogger(__name__)

_SCORES = "evaluations"  # subfolder of a training's folder, so that scores outlive pruned checkpoints
_SCORED_BY = ("convrec.evaluation.evaluation", "convrec.generation.lists")
Figures = dict[str, Any]


def with_options(params: Params, max_prompts: int | None, engine: str | None) -> Params:
    """Return the parameters with `evaluate.max_prompts` and `evaluate.engine` replaced by those of the command line."""
    raw = params.model_dump()
    given = {"max_prompts": max_prompts, "engine": engine}
    raw["evaluate"] |= {key: value for key, value in given.items() if value is not None}
    return parse_params(raw, "convrec evaluate")


def evaluate_models(
    params: Params, paths: Paths, names: Sequence[str], split: str, constrained: bool = False
) -> list[Figures]:
    """Score models on a split; return for each its name, the numbers of rows and prompts, and metrics with intervals.

    A name is a folder, a model of the Hugging Face Hub (NAME or NAME@REVISION), or a registry version. If
    `constrained`, lists contain only catalog items. Lists, scores and metrics are written to `evaluations/NAME/`, and
    each model gets an MLflow run.

    Raises `InputError` before any generation if data, engine or one of the models is missing.
    """
    evaluation = Evaluation.of_split(paths, split, **params.evaluation())
    found = {name: _locate(name, params) for name in dict.fromkeys(names)}
    return [_evaluate(name, *where, params, paths, split, evaluation, constrained) for name, where in found.items()]


def _locate(name: str, params: Params) -> tuple[Path, ListSettings]:
    """Return a model's folder and its list settings; a registered version has its own settings."""
    if not name.startswith("models:/"):
        return find_model(name, "--model", params.base_model.trust_remote_code), ListSettings(**params.list_settings())
    version = download_version(name)
    check_model(version.checkpoint, f"--model {name}", params.base_model.trust_remote_code)
    return version.checkpoint, version.settings


def _evaluate(
    name: str,
    folder: Path,
    settings: ListSettings,
    params: Params,
    paths: Paths,
    split: str,
    evaluation: Evaluation,
    constrained: bool,
) -> Figures:
    target = paths.evaluations / evaluation_name(name, split, params.evaluate.max_prompts, constrained)
    values = {"common": params.common.model_dump(), "evaluate": params.evaluate.model_dump(), "model": asdict(settings)}
    tags = {
        "profile": params.common.profile,
        "seed": str(params.common.seed),
        "stage": "evaluate",
        **data_tags(paths),
        "model": name,
        "split": split,
        "constrained": str(constrained).lower(),
        "checkpoint.md5": " ".join(file_md5(path) for path in sorted(folder.glob("*.safetensors"))),
    }
    with stage_run(f"evaluate {name}", values, tags, target / "run.json") as record:
        _record_data(record, paths, split)
        found = evaluation.of_model(folder, constrained, settings)
        metrics = evaluation.intervals(found.scores)
        sizes = {"n_rows": len(evaluation.rows), "n_prompts": len(evaluation.prompts)}
        result: Figures = {"model": name, "split": split, "engine": params.evaluate.engine, "constrained": constrained}
        result |= {"run_id": record.run_id, **sizes, "truncated_share": found.truncated_share, "metrics": metrics}
        frame = pd.DataFrame({"prompt_id": list(found.texts), "response": list(found.texts.values())})
        write_rows(frame, target / "lists.parquet")
        write_rows(found.scores, target / "scores.parquet")
        write_json(target / "evaluation.json", result)
        record.log_metrics(flat_metrics(metrics, f"{split}/") | sizes)
        for path in ("lists.parquet", "evaluation.json"):
            record.log_artifact(target / path)
    logger.info("%s: lists and scores are in %s", name, target)
    return result


def evaluation_name(model: str, split: str, max_prompts: int | None, constrained: bool = False) -> str:
    """Return the name of an evaluation's folder: model, split, and suffixes for `max_prompts` and `constrained`."""
    first = "" if max_prompts is None else f".first-{max_prompts}"
    first += ".constrained" if constrained else ""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', model.removeprefix('models:/')).strip('-.')}.{split}{first}"


def _record_data(record: Run, paths: Paths, split: str) -> None:
    record.log_dataset(paths.split(split), split)
    record.log_dataset(paths.catalog, "catalog")


def print_evaluations(results: Sequence[Figures]) -> None:
    """Print one row for each metric and one column for each model: the mean and its 95 % interval."""
    first = results[0]
    rows = [
        [metric_label(metric), *(with_interval(result["metrics"][metric]) for result in results)]
        for metric in first["metrics"]
    ]
    how = ", constrained" if first["constrained"] else ""
    TextTable(["", *(result["model"] for result in results)], rows, _title(first, how)).print(120, wrap=True)


def _title(result: Figures, how: str = "") -> str:
    sizes = f"{result['n_rows']} rows, {result['n_prompts']} prompts, 95 % intervals"
    return f"{result['split'].capitalize()} split{how}: {sizes}"


def _training_folder(stage: str, params: Params, paths: Paths) -> Path:
    """Return the folder of the training with the current parameters and inputs."""
    try:
        if stage == "sft":
            from convrec.pipeline.stages import sft  # noqa: PLC0415  (15 s to import)

            return sft.checkpoint_folder(params, paths)
        if stage == "rank_grpo":
            from convrec.pipeline.stages import rank_grpo  # noqa: PLC0415  (15 s to import)
            from convrec.registry.versions import download_checkpoint  # noqa: PLC0415
            from convrec.training.start import resolve_start  # noqa: PLC0415

            config = params.rank_grpo
            start = resolve_start(config.start, paths.model("sft"), config.max_steps, download_checkpoint)
            return rank_grpo.checkpoint_folder(params, paths, start)
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: not made yet; run `dvc repro {stage}` first") from None
    raise InputError(f"--checkpoints {stage}: give sft, rank_grpo, or both separated by a comma")


def _kept(stage: str, folder: Path, context: str, trust_remote_code: bool) -> dict[int, Path]:
    """Return the complete checkpoints of a training that can be loaded, by step."""
    kept = complete_checkpoints(folder)
    for step in [step for step, path in kept.items() if not has_weights(path)]:
        logger.warning("%s step %d is skipped: %s has no weights that can be loaded", stage, step, kept.pop(step))
    if not kept and not _evaluated(folder, kept, context):
        raise InputError(
            f"{folder}: no loadable checkpoints for the current parameters and data; run `dvc repro {stage}` first, "
            "with `--force -s` if its model came from DVC's cache"
        )
    for step, path in kept.items():
        check_model(path, f"{stage} step {step}", trust_remote_code)
    return kept


def _context(params: Params, paths: Paths, split: str) -> str:
    """Return a fingerprint of everything that a checkpoint's scores depend on except its weights."""
    parameters = {
        "settings": params.list_settings(),
        "cutoffs": params.common.cutoffs,
        "seed": params.common.seed,
        "constrained": params.rank_grpo.constrained,
        "evaluate": params.evaluate.model_dump(include={"engine", "bootstrap_samples", "max_prompts"}),
        "code": code_digest(code_files(_SCORED_BY)),
    }
    return fingerprint(parameters, [paths.split(split), paths.catalog])


def _score_file(folder: Path, checkpoint: Path, context: str) -> Path:
    key = fingerprint({"context": context, "checkpoint": checkpoint.name}, model_files(checkpoint))
    return folder / _SCORES / f"{key}.json"


def _evaluated(folder: Path, kept: Mapping[int, Path], context: str) -> list[Figures]:
    """Return the stored scores of a training's checkpoints by step, including checkpoints that were pruned since."""
    stored = sorted((folder / _SCORES).glob("*.json"), key=lambda path: path.stat().st_mtime)
    of_kept = {_score_file(folder, path, context) for path in kept.values()}
    rows = {}
    for path in stored:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("context") == context and (path in of_kept or row["step"] not in kept):
            rows[row["step"]] = {**row, "kept": row["step"] in kept, "chosen": row["step"] == chosen_step(folder)}
    return [rows[step] for step in sorted(rows)]


def evaluate_checkpoints(params: Params, paths: Paths, stages: Sequence[str], every: int | None, split: str) -> Figures:
    """Score the kept checkpoints of `sft`, `rank_grpo` or both: every `every` steps, the last and the chosen one.

    Rank-GRPO checkpoints write constrained lists if its rollouts are constrained, as in validation during training.
    Scores are stored beside the checkpoints, so the same weights are not evaluated again with the same settings, data
    and code. Return the numbers of rows and prompts, the kept steps, and the rows by stage and step. They are also
    written to `evaluations/checkpoints.json`, as a flat table to `checkpoints.csv`, and by step to an MLflow run.

    Raises `InputError` before any generation if data, engine or checkpoints are missing.
    """
    evaluation = Evaluation.of_split(paths, split, **params.evaluation())
    folders = {stage: _training_folder(stage, params, paths) for stage in dict.fromkeys(stages)}
    context, trust = _context(params, paths, split), params.base_model.trust_remote_code
    kept = {stage: _kept(stage, folder, context, trust) for stage, folder in folders.items()}
    values = {"common": params.common.model_dump(), "evaluate": params.evaluate.model_dump(), "every": every}
    tags = {**params.tags(), **data_tags(paths), "stage": "evaluate", "split": split, "stages": ",".join(folders)}
    target = paths.evaluations / "checkpoints.json"
    sizes = {"split": split, "n_rows": len(evaluation.rows), "n_prompts": len(evaluation.prompts)}
    result: Figures = {**sizes, "kept": {}, "checkpoints": []}
    with stage_run("evaluate checkpoints", values, tags, paths.evaluations / "checkpoints.run.json") as record:
        _record_data(record, paths, split)
        for stage, folder in folders.items():
            constrained = stage == "rank_grpo" and params.rank_grpo.constrained
            for step in _wanted(folder, kept[stage], every):
                _score_checkpoint(stage, step, kept[stage][step], folder, evaluation, constrained, context)
            kept[stage] = {step: path for step, path in kept[stage].items() if path.is_dir()}
            for row in _evaluated(folder, kept[stage], context):
                result["checkpoints"].append(row)
                record.log_metrics(flat_metrics(row["metrics"], f"{split}/{stage}/"), row["step"])
            result["kept"][stage] = list(kept[stage])
        write_json(target, result)
        flat = [
            {
                **{name: row[name] for name in ("stage", "step", "kept", "chosen")},
                **sizes,
                **flat_metrics(row["metrics"]),
            }
            for row in result["checkpoints"]
        ]
        write_plot(target.with_suffix(".csv"), flat)
        for path in (target, target.with_suffix(".csv")):
            record.log_artifact(path)
    return result


def _wanted(folder: Path, kept: Mapping[int, Path], every: int | None) -> list[int]:
    always = {chosen_step(folder), *list(kept)[-1:]}
    return [step for step in kept if every is None or step % every == 0 or step in always]


def _score_checkpoint(
    stage: str, step: int, checkpoint: Path, folder: Path, evaluation: Evaluation, constrained: bool, context: str
) -> None:
    """Write the scores of one checkpoint atomically, unless they exist or the training prunes it meanwhile."""
    try:
        file = _score_file(folder, checkpoint, context)
        if file.is_file():
            logger.info("%s step %d: evaluated before", stage, step)
            return
        metrics = evaluation.intervals(evaluation.of_model(checkpoint, constrained).scores)
        write_json(file, {"context": context, "stage": stage, "step": step, "metrics": metrics})
    except (OSError, InputError):
        if checkpoint.is_dir():
            raise
        logger.warning("%s step %d is skipped: its checkpoint was pruned during the evaluation", stage, step)


def print_checkpoints(result: Figures) -> None:
    """Print one row for each checkpoint: Recall and NDCG at the largest cutoff, with intervals, and its state."""
    found = result["checkpoints"]
    cutoff = max(int(name.rpartition("_")[2]) for name in found[0]["metrics"] if name.startswith("ndcg_at_"))
    metrics = [f"recall_at_{cutoff}", f"ndcg_at_{cutoff}", "in_catalog"]
    rows = []
    for row in found:
        state = " ".join(["kept" if row["kept"] else "pruned", *(["chosen"] if row["chosen"] else [])])
        rows.append([row["stage"], str(row["step"]), *(with_interval(row["metrics"][name]) for name in metrics), state])
    TextTable(["stage", "step", *map(metric_label, metrics), "checkpoint"], rows, _title(result)).print(120)
    for stage, steps in result["kept"].items():
        Console(highlight=False, width=120).print(f"{stage}: kept steps: {', '.join(map(str, steps)) or 'none'}")
