"""`convrec evaluate`: scores any models, or the kept checkpoints of the current trainings, without training."""

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.classical.guidance import Guidance
from convrec.data.catalog import Catalog
from convrec.data.conversations import write_rows
from convrec.evaluation.evaluation import Evaluation, flat_metrics
from convrec.evaluation.headline import with_interval
from convrec.evaluation.metrics import metric_label
from convrec.generation.lists import ListSettings
from convrec.generation.model_folders import check_model, find_model, has_weights
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable
from convrec.registry.model_card import CHECKPOINT_TAG, checkpoint_digest
from convrec.registry.tracking import stage_run
from convrec.registry.versions import download_version, require_shared_items
from convrec.training.checkpoints import chosen_step, complete_checkpoints, training_folder

logger = logging.getLogger(__name__)

Figures = dict[str, Any]


def evaluate_models(
    params: Params, paths: Paths, names: Sequence[str], split: str, free: bool = False
) -> list[Figures]:
    """Score models on a split; return for each its name, the numbers of rows and prompts, and metrics with intervals.

    A name is a folder, a model of the Hugging Face Hub (NAME or NAME@REVISION), or a registry version. The lists are
    those that are served (see `evaluation/systems.py`), or `free` ones. Lists, scores and metrics are written to
    `evaluations/NAME/`, and each model gets an MLflow run.

    Raises `InputError` before any generation if data, engine or one of the models is missing.
    """
    evaluation, results = Evaluation.of_split(paths, split, **params.evaluation()), []
    constrained = params.evaluate.constrained and not free
    sizes = {"n_rows": len(evaluation.rows), "n_prompts": len(evaluation.prompts)}
    shared = {"profile": params.common.profile, "seed": str(params.common.seed), "split": split}
    located = {name: _locate(name, params, evaluation) for name in dict.fromkeys(names)}
    for name, (folder, settings, guidance) in located.items():
        target = paths.evaluations / evaluation_name(name, split, params.evaluate.max_prompts, free)
        tags = {**shared, "stage": "evaluate", "model": name, CHECKPOINT_TAG: checkpoint_digest(folder)}
        tags["constrained"] = str(constrained).lower()
        values = {**params.model_dump(include={"common", "evaluate"}), "model": asdict(settings)}
        with stage_run(f"evaluate {name}", values, tags) as record:
            record.log_dataset(paths.split(split), split)
            record.log_dataset(paths.catalog, "catalog")
            if split == "validation" and guidance != paths.guidance:
                logger.warning("%s: its evidence has what was liked in its own validation split", name)
            training = paths.evidence if split == "validation" and guidance == paths.guidance else None
            guide = Guidance.load(guidance, evaluation.catalog, training=training) if constrained else None
            found = evaluation.of_model(folder, constrained, settings, guide)
            metrics = evaluation.intervals(found.scores)
            result = {"model": name, "split": split, "engine": params.evaluate.engine, "constrained": constrained}
            result |= {"run_id": record.run_id, **sizes, "truncated_share": found.truncated_share, "metrics": metrics}
            frame = pd.DataFrame({"prompt_id": list(found.texts), "response": list(found.texts.values())})
            write_rows(frame, target / "lists.parquet")
            write_rows(found.scores, target / "scores.parquet")
            write_json(target / "evaluation.json", result)
            record.log_metrics(flat_metrics(metrics, f"{split}/") | sizes)
            for path in ("lists.parquet", "evaluation.json"):
                record.log_artifact(target / path)
        logger.info("%s: lists and scores are in %s", name, target)
        results.append(result)
    return results


def _locate(name: str, params: Params, evaluation: Evaluation) -> tuple[Path, ListSettings, Path | None]:
    """Return a model's folder, its list settings and its guidance; a registered version has its own.

    The guidance of the project guides all other models.
    """
    trust = params.base_model.trust_remote_code
    if not name.startswith("models:/"):
        return find_model(name, "--model", trust), ListSettings(**params.list_settings()), Paths().guidance
    version = download_version(name)
    own = {str(Paths().catalog): evaluation.catalog}
    require_shared_items({f"--model {name}": Catalog.read(version.catalog)} | own)
    check_model(version.checkpoint, f"--model {name}", trust)
    return version.checkpoint, version.settings, version.guidance


def evaluation_name(model: str, split: str, max_prompts: int | None, free: bool = False) -> str:
    """Return the name of an evaluation's folder: model, split, and suffixes for `max_prompts` and free lists."""
    first = "" if max_prompts is None else f".first-{max_prompts}"
    first += ".free" if free else ""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', model.removeprefix('models:/')).strip('-.')}.{split}{first}"


def print_evaluations(results: Sequence[Figures]) -> None:
    """Print one row for each metric and one column for each model: the mean and its 95 % interval."""
    first = results[0]
    rows = [
        [metric_label(metric), *(with_interval(result["metrics"][metric]) for result in results)]
        for metric in first["metrics"]
    ]
    TextTable(["", *(result["model"] for result in results)], rows, _title(first)).print(120)


def _title(result: Figures) -> str:
    how = "" if result.get("constrained", True) else ", free lists"
    sizes = f"{result['n_rows']} rows, {result['n_prompts']} prompts, 95 % intervals"
    return f"{result['split'].capitalize()} split{how}: {sizes}"


def _kept(stage: str, params: Params, paths: Paths) -> tuple[Path, dict[int, Path]]:
    """Return the folder of the training with the current parameters and inputs, and its loadable checkpoints by step.

    Raises `InputError` if there are none.
    """
    if stage not in ("sft", "rank_grpo"):
        raise InputError(f"--checkpoints {stage}: give sft, rank_grpo, or both separated by a comma")
    try:
        key = import_module(f"convrec.pipeline.stages.{stage}").key_of(params, paths)  # seconds to import
    except FileNotFoundError as error:
        raise InputError(f"{error.filename}: not made yet; run `dvc repro {stage}` first") from None
    folder = training_folder(stage, key)
    kept = {step: path for step, path in complete_checkpoints(folder).items() if has_weights(path)}
    if not kept:
        raise InputError(
            f"{folder}: no loadable checkpoints for the current parameters and data; run `dvc repro {stage}` first, "
            "with `--force -s` if its model came from DVC's cache"
        )
    return folder, kept


def evaluate_checkpoints(params: Params, paths: Paths, stages: Sequence[str], every: int | None, split: str) -> Figures:
    """Score the kept checkpoints of `sft`, `rank_grpo` or both: every `every` steps, the last and the chosen one.

    Rank-GRPO checkpoints write constrained lists if its rollouts are constrained, as in validation during training;
    those of SFT write the lists that are served.
    Return the numbers of rows and prompts, and the metrics by stage and step. They are also written to
    `evaluations/checkpoints.json`, and by step to an MLflow run.

    Raises `InputError` before any generation if data, engine or checkpoints are missing.
    """
    evaluation = Evaluation.of_split(paths, split, **params.evaluation())
    trainings = {stage: _kept(stage, params, paths) for stage in dict.fromkeys(stages)}
    values = {**params.model_dump(include={"common", "evaluate"}), "every": every}
    tags = {**params.tags(), "stage": "evaluate", "split": split, "stages": ",".join(trainings)}
    sizes = {"split": split, "n_rows": len(evaluation.rows), "n_prompts": len(evaluation.prompts)}
    training = paths.evidence if split == "validation" else None
    target = paths.evaluations / "checkpoints.json"
    guide = Guidance.load(paths.guidance, evaluation.catalog, training=training)
    rows: list[Figures] = []
    with stage_run("evaluate checkpoints", values, tags) as record:
        sizes["run_id"] = record.run_id
        for stage, (folder, kept) in trainings.items():
            constrained = params.rank_grpo.constrained if stage == "rank_grpo" else params.evaluate.constrained
            chosen = chosen_step(folder)
            for step in (step for step in kept if not step % (every or 1) or step in (chosen, max(kept))):
                metrics = evaluation.intervals(evaluation.of_model(kept[step], constrained, guide=guide).scores)
                rows.append({"stage": stage, "step": step, "chosen": step == chosen, "metrics": metrics})
                record.log_metrics(flat_metrics(metrics, f"{split}/{stage}/"), step)
        write_json(target, {**sizes, "checkpoints": rows})
        record.log_artifact(target)
    return {**sizes, "checkpoints": rows}


def print_checkpoints(result: Figures) -> None:
    """Print one row for each checkpoint: Recall and NDCG at the largest cutoff, with intervals."""
    found = result["checkpoints"]
    cutoff = max(int(name.removeprefix("ndcg_at_")) for name in found[0]["metrics"] if name.startswith("ndcg_at_"))
    metrics = [f"recall_at_{cutoff}", f"ndcg_at_{cutoff}", "in_catalog"]
    rows = []
    for row in found:
        cells = [with_interval(row["metrics"][name]) for name in metrics]
        rows.append([row["stage"], str(row["step"]), *cells, "chosen" if row["chosen"] else ""])
    TextTable(["stage", "step", *map(metric_label, metrics), ""], rows, _title(result)).print(120)
