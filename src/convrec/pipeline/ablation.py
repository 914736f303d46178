"""`convrec ablate-demonstrations`: SFT on the lists after each step, to measure the effect of each step."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from convrec.data.conversations import STEP_COLUMNS, Row, read_rows
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.headline import with_interval
from convrec.evaluation.metrics import metric_label
from convrec.pipeline.seeds import Experiment, mean_of_seeds
from convrec.pipeline.stages.sft import learn
from convrec.project.config.params import Params, parse_params
from convrec.project.errors import InputError
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable
from convrec.registry.tracking import Run, data_tags, file_md5, group_run

VARIANTS = {
    "raw": "teacher",
    "remap": "remap",
    "remap + reflect": "reflect",
    "+ collaborative": "collaborative",
    "full": "adjust",
}
BASELINE = "raw"


def _measured(paths: Paths, frame: list[Row]) -> dict[str, list[Row]]:
    """Return the rows for scoring: those of held-out training prompts, if there are any, and the validation split.

    The held-out prompts are from the months of the demonstrations. Neither Adjust nor these models are fitted to them.
    """
    held_out = {row["prompt_id"] for row in frame if row["held_out"]}
    measured = {
        "held out": [row for row in read_rows(paths.split("train")) if row["prompt_id"] in held_out],
        "validation": read_rows(paths.split("validation")),
    }
    return {group: rows for group, rows in measured.items() if rows}


def _train(params: Params, folder: Path, record: Run, paths: Paths, frame: list[Row], column: str) -> tuple[Path, Any]:
    rows = [row for row in frame if row["teacher"] and not row["held_out"]]  # the same prompts for all variants
    return learn(params, paths, rows, column, folder, record)


def _list_scores(
    name: str, evaluation: Evaluation, paths: Paths, measured: dict[str, list[Row]]
) -> dict[str, pd.DataFrame]:
    """Return the scores of the demonstrations themselves, by group of prompts."""
    texts = {
        row["prompt_id"]: row[STEP_COLUMNS[VARIANTS[name]]]
        for split in ("train", "validation")
        for row in read_rows(paths.demonstration(split))
    }
    scores = {}
    for group, rows in measured.items():
        own = evaluation.of_rows(rows)
        scores[group] = own.of_lists([texts[row["prompt_id"]] for row in own.prompts]).scores
    return scores


def ablate(params: Params, paths: Paths, num_seeds: int) -> Path:
    """Train SFT on the lists after each step, from the raw to the full ones; print the table and write it as JSON.

    For each variant and group of prompts, the table has the NDCG of the demonstrations and of the SFT model, with 95 %
    bootstrap intervals over persons, and the model's paired difference to `raw`. All models train on the same prompts:
    those with an answer of the teacher that are not held out. An interrupted ablation resumes when it is started again.

    Raises `InputError` before any training if the base model, the demonstrations or the engine is missing.
    """
    for path, stage in ((paths.model("base"), "base_model"), (paths.demonstration("train"), "demonstrations")):
        if not path.exists():
            raise InputError(f"{path}: not made yet; run `dvc repro {stage}` first")
    # A missing engine stops this before the trainings.
    evaluation = Evaluation.of_split(paths, "validation", **params.evaluation())
    raw = params.model_dump()
    raw["sft"] |= params.sft.in_one_process()
    runs = []
    for seed in range(params.common.seed, params.common.seed + num_seeds):
        raw["common"]["seed"] = seed
        runs.append(parse_params(raw, "--seeds"))
    frame = read_rows(paths.demonstration("train"))
    measured = _measured(paths, frame)
    metric = evaluation.headline
    tags = {**params.tags(), **data_tags(paths), "stage": "ablate-demonstrations"}
    with group_run("ablate-demonstrations", tags, {"ablation": {"seeds": num_seeds}}) as record:
        splits = [paths.split("train"), paths.split("validation"), paths.catalog]
        inputs = [paths.model("base"), paths.demonstration("train"), *splits]
        experiment = Experiment("ablation", __name__, "sft", "base", inputs, measured, evaluation, False, paths, record)
        folders = {}
        for name, step in VARIANTS.items():
            train = partial(_train, paths=paths, frame=frame, column=STEP_COLUMNS[step])
            given = {"demonstrations": name}
            folders[name] = experiment.run_seeds(f"SFT on {name}", runs, given, train, column=STEP_COLUMNS[step])
        groups = {group: {"rows": len(rows)} for group, rows in measured.items()}
        result: dict[str, Any] = {"metric": metric, "seeds": num_seeds, "groups": groups, "variants": {}}
        result["demonstrations_md5"] = file_md5(paths.demonstration("train"))
        for name in VARIANTS:
            lists = _list_scores(name, evaluation, paths, measured)
            result["variants"][name] = {}
            for group in measured:
                models, by_seed = mean_of_seeds(folders[name], group, metric)
                entry = {
                    "lists": evaluation.interval(lists[group], metric)._asdict(),
                    "sft": evaluation.interval(models, metric)._asdict(),
                    "sft_by_seed": by_seed,
                }
                if name != BASELINE:
                    baseline, _ = mean_of_seeds(folders[BASELINE], group, metric)
                    gain = evaluation.gain(models, baseline, metric)
                    entry[f"sft_over_{BASELINE}"] = gain._asdict()
                result["variants"][name][group] = entry
        write_json(paths.ablation, result)
        record.log_artifact(paths.ablation)
    print_ablation(result)
    return paths.ablation


def print_ablation(result: dict[str, Any]) -> None:
    """Print one row for each variant: the NDCG of its lists and of its model by group of prompts."""
    rows = ", ".join(f"{group} {sizes['rows']} rows" for group, sizes in result["groups"].items())
    title = f"{metric_label(result['metric'])}: {rows}, {result['seeds']} seeds"
    headings = [
        heading for group in result["groups"] for heading in (f"{group}: lists", "SFT (95 %)", "over raw (95 %)")
    ]
    table = []
    for name, groups in result["variants"].items():
        cells = [name]
        for entry in groups.values():
            sft, gain = entry["sft"], entry.get(f"sft_over_{BASELINE}")
            cells.append(f"{entry['lists']['mean']:.4f}")
            cells.append(with_interval(sft))
            cells.append(f"{gain['mean']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]" if gain else "")
        table.append(cells)
    TextTable(["demonstrations", *headings], table, title).print(width=160)
