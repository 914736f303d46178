"""`convrec evaluate --checkpoints`: scores the kept checkpoints of the current trainings, each once."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from convrec.config.params import Params
from convrec.data.conversations import read_prompts
from convrec.errors import InputError
from convrec.evaluation.systems import metric_label
from convrec.experiments.evaluate_models import (
    answers,
    flat_metrics,
    interval_metrics,
    record_data,
    shown,
)
from convrec.files.code import code_digest, code_files
from convrec.files.fingerprint import fingerprint
from convrec.files.results import write_json, write_plot
from convrec.generation.lists import EngineOptions, ListSettings
from convrec.models.folders import check_model, has_weights, model_files
from convrec.paths import Paths
from convrec.tracking import data_tags, stage_run
from convrec.training.checkpoints import chosen_step, complete_checkpoints

logger = logging.getLogger(__name__)

_SCORES = "evaluations"  # subfolder of a training's folder, so that scores outlive pruned checkpoints
_SCORED_BY = ("convrec.experiments.evaluate_models", "convrec.generation.lists")


def _training_folder(stage: str, params: Params, paths: Paths) -> Path:
    """Return the folder of the training with the current parameters and inputs."""
    try:
        if stage == "sft":
            from convrec.stages import sft  # noqa: PLC0415  (15 s to import)

            return sft.checkpoint_folder(params, paths)
        if stage == "rank_grpo":
            from convrec.registry.versions import download_checkpoint  # noqa: PLC0415
            from convrec.stages import rank_grpo  # noqa: PLC0415  (15 s to import)
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
        "settings": asdict(ListSettings(**params.list_settings())),
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


def _evaluated(folder: Path, kept: dict[int, Path], context: str) -> list[dict[str, Any]]:
    """Return the stored scores of a training's checkpoints by step, including checkpoints that were pruned since."""
    stored = sorted((folder / _SCORES).glob("*.json"), key=lambda path: path.stat().st_mtime)
    of_kept = {_score_file(folder, path, context) for path in kept.values()}
    rows = {}
    for path in stored:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("context") == context and (path in of_kept or row["step"] not in kept):
            rows[row["step"]] = {**row, "kept": row["step"] in kept, "chosen": row["step"] == chosen_step(folder)}
    return [rows[step] for step in sorted(rows)]


def evaluate_checkpoints(
    params: Params, paths: Paths, stages: Sequence[str], every: int | None, split: str
) -> dict[str, Any]:
    """Score the kept checkpoints of `sft`, `rank_grpo` or both: every `every` steps, the last and the chosen one.

    Rank-GRPO checkpoints write constrained lists if its rollouts are constrained, as in validation during training.
    Scores are stored beside the checkpoints, so the same weights are not evaluated again with the same settings, data
    and code. Return the numbers of rows and prompts, the kept steps, and the rows by stage and step. They are also
    written to `evaluations/checkpoints.json`, as a flat table to `checkpoints.csv`, and by step to an MLflow run.

    Raises `InputError` before any generation if data, engine or checkpoints are missing.
    """
    paths.require_split(split)
    EngineOptions.on_this_machine(**params.engine_options())
    folders = {stage: _training_folder(stage, params, paths) for stage in dict.fromkeys(stages)}
    context = _context(params, paths, split)
    trust = params.base_model.trust_remote_code
    kept = {stage: _kept(stage, folder, context, trust) for stage, folder in folders.items()}
    rows, prompts = read_prompts(paths.split(split), params.evaluate.max_prompts)
    values = {"common": params.common.model_dump(), "evaluate": params.evaluate.model_dump(), "every": every}
    tags = {**params.tags(), **data_tags(paths), "stage": "evaluate", "split": split, "stages": ",".join(folders)}
    target = paths.evaluations / "checkpoints.json"
    result: dict[str, Any] = {"split": split, "n_rows": len(rows), "n_prompts": len(prompts)}
    result |= {"kept": {}, "checkpoints": []}
    with stage_run("evaluate checkpoints", values, tags, paths.evaluations / "checkpoints.run.json") as record:
        record_data(record, paths, split)
        for stage, folder in folders.items():
            for step in _wanted(folder, kept[stage], every):
                try:
                    _evaluate(stage, step, kept[stage][step], folder, rows, params, paths, context)
                except (OSError, InputError):
                    if kept[stage][step].is_dir():
                        raise
                    logger.warning(
                        "%s step %d is skipped: its checkpoint was pruned during the evaluation", stage, step
                    )
            kept[stage] = {step: path for step, path in kept[stage].items() if path.is_dir()}
            for row in _evaluated(folder, kept[stage], context):
                result["checkpoints"].append(row)
                record.log_metrics(flat_metrics(row["metrics"], f"{split}/{stage}/"), row["step"])
            result["kept"][stage] = list(kept[stage])
        write_json(target, result)
        write_plot(target.with_suffix(".csv"), _flat(result))
        for path in (target, target.with_suffix(".csv")):
            record.log_artifact(path)
    return result


def _flat(result: dict[str, Any]) -> list[dict[str, Any]]:
    sizes = {name: result[name] for name in ("split", "n_rows", "n_prompts")}
    of_row = ("stage", "step", "kept", "chosen")
    return [
        {**{name: row[name] for name in of_row}, **sizes, **flat_metrics(row["metrics"])}
        for row in result["checkpoints"]
    ]


def _wanted(folder: Path, kept: dict[int, Path], every: int | None) -> list[int]:
    always = {chosen_step(folder), *list(kept)[-1:]}
    return [step for step in kept if every is None or step % every == 0 or step in always]


def _evaluate(
    stage: str,
    step: int,
    checkpoint: Path,
    folder: Path,
    rows: list[dict[str, Any]],
    params: Params,
    paths: Paths,
    context: str,
) -> None:
    """Write the scores of one checkpoint atomically, unless they exist."""
    file = _score_file(folder, checkpoint, context)
    if file.is_file():
        logger.info("%s step %d: evaluated before", stage, step)
        return
    constrained = stage == "rank_grpo" and params.rank_grpo.constrained
    found = answers(checkpoint, ListSettings(**params.list_settings()), rows, params, paths, constrained)
    metrics = interval_metrics(found.scores, params)
    write_json(file, {"context": context, "stage": stage, "step": step, "metrics": metrics})


def print_checkpoints(result: dict[str, Any]) -> None:
    """Print one row for each checkpoint: Recall and NDCG at the largest cutoff, with intervals, and its state."""
    rows = result["checkpoints"]
    cutoff = max(int(name.rpartition("_")[2]) for name in rows[0]["metrics"] if name.startswith("ndcg_at_"))
    title = (
        f"{result['split'].capitalize()} split: {result['n_rows']} rows, {result['n_prompts']} prompts, 95 % intervals"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    metrics = [f"recall_at_{cutoff}", f"ndcg_at_{cutoff}", "in_catalog"]
    for name in ("stage", "step", *map(metric_label, metrics), "checkpoint"):
        table.add_column(name, justify="left" if name in ("stage", "checkpoint") else "right")
    for row in rows:
        state = " ".join(["kept" if row["kept"] else "pruned", *(["chosen"] if row["chosen"] else [])])
        table.add_row(row["stage"], str(row["step"]), *(shown(row["metrics"][name]) for name in metrics), state)
    console = Console(highlight=False, width=120)
    console.print(table)
    for stage, steps in result["kept"].items():
        console.print(f"{stage}: kept steps: {', '.join(map(str, steps)) or 'none'}")
