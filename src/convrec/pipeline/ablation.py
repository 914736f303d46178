"""`convrec ablate-demonstrations`: SFT on the lists after each step, to measure the effect of each step."""

from pathlib import Path
from typing import Any

import pandas as pd

from convrec.data.conversations import STEP_COLUMNS, Row, read_rows
from convrec.evaluation.evaluation import Evaluation
from convrec.evaluation.headline import with_interval
from convrec.evaluation.metrics import metric_label
from convrec.pipeline.stages.sft import learn
from convrec.pipeline.variants import Experiment, gain_text, mean_of_seeds, params_of_seeds, require_made
from convrec.project.config.params import Params
from convrec.project.paths import Paths
from convrec.project.results import write_json
from convrec.project.table import TextTable
from convrec.registry.tracking import Run, data_tags, file_md5, group_run

VARIANTS = {  # the demonstration step whose lists each learns; the first is the baseline
    "raw": "teacher",
    "remap": "remap",
    "remap + reflect": "reflect",
    "+ collaborative": "collaborative",
    "full": "adjust",
}
BASELINE = "raw"


def _measured(paths: Paths) -> dict[str, list[Row]]:
    """Return the rows for scoring: those of held-out training prompts, if there are any, and the validation split.

    The held-out prompts are from the months of the demonstrations. Neither Adjust nor these models are fitted to them.
    """
    held_out = {row["prompt_id"] for row in read_rows(paths.demonstration("train")) if row["held_out"]}
    measured = {
        "held out": [row for row in read_rows(paths.split("train")) if row["prompt_id"] in held_out],
        "validation": read_rows(paths.split("validation")),
    }
    return {group: rows for group, rows in measured.items() if rows}


def _list_scores(column: str, evaluation: Evaluation, paths: Paths, rows: list[Row]) -> pd.DataFrame:
    """Return the scores of the demonstrations themselves."""
    texts = {
        row["prompt_id"]: row[column]
        for split in ("train", "validation")
        for row in read_rows(paths.demonstration(split))
    }
    own = evaluation.of_rows(rows)
    return own.of_lists([texts[row["prompt_id"]] for row in own.prompts]).scores


def ablate(params: Params, paths: Paths, num_seeds: int) -> Path:
    """Train SFT on the lists after each step, from the raw to the full ones; print the table and write it as JSON.

    For each variant and group of prompts, the table has the NDCG of the demonstrations and of the SFT model, with 95 %
    bootstrap intervals over persons, and the model's paired difference to `raw`. All models train on the same prompts:
    those with an answer of the teacher that are not held out. An interrupted ablation resumes when it is started again.

    Raises `InputError` before any training if the base model, the demonstrations or the engine is missing.
    """
    require_made(base_model=paths.model("base"), demonstrations=paths.demonstration("train"))
    evaluation = Evaluation.of_split(paths, "validation", **params.evaluation())
    metric, measured = evaluation.headline, _measured(paths)
    runs = params_of_seeds(params, "sft", {}, num_seeds, "--seeds")
    splits = [paths.split("train"), paths.split("validation"), paths.catalog]
    inputs = [paths.model("base"), paths.demonstration("train"), *splits]
    experiment = Experiment(__name__, "sft", inputs, measured, evaluation, False, paths)
    rows = [row for row in read_rows(inputs[1]) if row["teacher"] and not row["held_out"]]  # the same for all variants
    groups = {group: {"rows": len(prompts)} for group, prompts in measured.items()}
    result: dict[str, Any] = {"metric": metric, "seeds": num_seeds, "groups": groups, "variants": {}}
    result["demonstrations_md5"] = file_md5(inputs[1])
    tags = {**params.tags(), **data_tags(paths), "stage": "ablate-demonstrations"}
    baselines: dict[str, pd.DataFrame] = {}
    with group_run("ablate-demonstrations", tags, {"ablation": {"seeds": num_seeds}}) as record:
        for name, step in VARIANTS.items():

            def train(run: Params, folder: Path, own: Run, column: str = STEP_COLUMNS[step]) -> tuple[Path, Any]:
                return learn(run, paths, rows, column, folder, own)

            folders = experiment.run_seeds(f"SFT on {name}", runs, train, record)
            result["variants"][name] = entries = {}
            for group, prompts in measured.items():
                lists = _list_scores(STEP_COLUMNS[step], evaluation, paths, prompts)
                models, by_seed = mean_of_seeds(folders, group, metric)
                entries[group] = {
                    "lists": evaluation.interval(lists, metric)._asdict(),
                    "sft": evaluation.interval(models, metric)._asdict(),
                    "sft_by_seed": by_seed,
                }
                baseline = baselines.setdefault(group, models)
                if name != BASELINE:
                    gain = evaluation.gain(models, baseline, metric)
                    entries[group][f"sft_over_{BASELINE}"] = gain._asdict()
        write_json(paths.ablation, result)
        record.log_artifact(paths.ablation)
    print_ablation(result)
    return paths.ablation


def print_ablation(result: dict[str, Any]) -> None:
    """Print one row for each variant: the NDCG of its lists and of its model by group of prompts."""
    sizes = ", ".join(f"{group} {size['rows']} rows" for group, size in result["groups"].items())
    header, rows = ["demonstrations"], [[name] for name in result["variants"]]
    for group in result["groups"]:
        header += [f"{group}: lists", "SFT (95 %)", "over raw (95 %)"]
        for row in rows:
            entry = result["variants"][row[0]][group]
            row += [f"{entry['lists']['mean']:.4f}", with_interval(entry["sft"])]
            row.append(gain_text(entry.get(f"sft_over_{BASELINE}")))
    title = f"{metric_label(result['metric'])}: {sizes}, {result['seeds']} seeds"
    TextTable(header, rows, title).print(width=160)
